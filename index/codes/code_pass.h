// One pass over the codes of a KV head: finds the rows that score best, to be attended as they are,
// and sums up what stands for all others. What a CUDA device does with codes
// (gpu/codes/code_scan.h), the host does here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "index/codes/code_tail.h"
#include "index/codes/codes_index.h"
#include "index/common/row_tail.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

/// One token's part in a pass: the query heads of a group.
struct PassToken {
  const float* queries = nullptr;  ///< [group, dim]
  PositionRange allowed = {};
  /// To be written: ascending positions of rows that all heads of the group are to attend.
  std::vector<std::int64_t>* listed = nullptr;
  /// Likewise, of [group] heads: rare rows as they are (CodesIndex::rare), unless out is null, and,
  /// where there is a tail, an estimate of all rows that are neither rare nor listed.
  TailParts parts = {};
};

/// Codes misorder keys whose scores are close: so many times the rows that are asked for leave few
/// behind, and attending them takes the host little beside the pass.
inline constexpr std::int64_t listed_per_row = 2;

/// What a pass is over, and what is wanted.
struct CodePass {
  const CodesIndex* index = nullptr;
  const CodeTail* tail = nullptr;  ///< null: none is wanted
  RowsView rows;
  std::int64_t group = 1;
  std::int64_t wanted = 0;  ///< rows of each query head
  float scale = 1;
  float softcap = 0;

  /// Lists rows whose codes score above a threshold for any head of the group: about `wanted` for
  /// each, as a sample of the codes tells (the best of all codes, where there are few). At most
  /// 4 group wanted + 256 of each 65,536 keys are listed; others stay in the tail. Results do not
  /// depend on threads, nor on other tokens. Safe from many threads. REQUIRES: there are rows.
  void run(std::span<const PassToken> tokens) const;

 private:
  struct Work;
  void run_some(std::span<const PassToken> tokens) const;
  void set_thresholds(const PassToken& token, std::span<const SlotWeights> weights, Work& work,
                      std::span<float> thresholds, std::span<float> expected) const;
  void pass_piece(std::span<const PassToken> tokens, std::int64_t piece, Work& work) const;
};

}  // namespace topkv
