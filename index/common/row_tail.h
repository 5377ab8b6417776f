// The tail: a partial that stands for all rows of a KV head that were not attended themselves,
// estimated from a few bytes of each.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "index/common/tail_noise.h"
#include "topkv/attention.h"
#include "topkv/key_index.h"

namespace topkv {

class CodeTail;

/// The estimate of a tail, and its noise, in memory that it owns.
class EstimateBuffer {
 public:
  /// Becomes empty estimates of this number of queries. Allocates memory only when it grows.
  void reset(std::int64_t heads, std::int64_t head_dim) {
    estimate_.reset(heads, head_dim);
    noise_.assign(static_cast<std::size_t>(heads), {});
  }
  /// exact: the partial beside the estimate.
  TailParts with(PartialView exact) { return {estimate_.view(), exact, noise_.data()}; }

 private:
  Partial estimate_;
  std::vector<TailNoise> noise_;
};

/// Makes the parts empty ones.
inline void make_empty(const TailParts& out) {
  for (const PartialView& empty : {out.estimate, out.exact}) {
    std::fill_n(empty.out, empty.heads * empty.head_dim, 0.0F);
    std::fill_n(empty.lse, empty.heads, empty_lse);
  }
  std::fill_n(out.noise, out.estimate.heads, TailNoise{});
}

/// Const members are safe from many threads.
class RowTail {
 public:
  virtual ~RowTail() = default;

  /// Overwrites `out` with partials, for each query, over the rows of its allowed range that are
  /// not among `taken` (ascending positions, per query). Scores are scale * q·k, capped when
  /// softcap > 0. ceilings: per query, what no such row's score exceeds (infinity: not known);
  /// without it the errors of many estimates would drown what a sharp query found. A query without
  /// such rows gets empty partials. The result does not depend on the number of threads.
  virtual void attend(const QueryBlock& queries,
                      std::span<const std::span<const std::int64_t>> taken,
                      std::span<const float> ceilings, float scale, float softcap,
                      const TailParts& out) const = 0;

  /// Returns the rows of a range that attend() attends as they are, unless they are taken:
  /// ascending. Samples are not among them.
  virtual std::span<const std::int64_t> rare_in(const PositionRange& /*range*/) const { return {}; }

  /// Returns this tail if it is made of codes, which a device can scan. Null: it is another tail.
  virtual const CodeTail* code_tail() const { return nullptr; }

  /// Bytes held beyond the rows and the index that it was made with.
  virtual std::int64_t memory() const = 0;

  /// Bytes that estimating for one token's heads reads, beyond that index.
  virtual std::int64_t bytes_read(std::int64_t /*heads*/) const { return memory(); }
};

}  // namespace topkv
