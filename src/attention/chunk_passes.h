// Dual chunk attention (An et al. 2024, section 3): which of a token's queries meets which keys.
//
// A token's keys are disjoint sets: its own chunk, the chunk before, all before that. So attention
// goes in *passes*, one for each query over the positions that it meets, whose partials are merged
// (topkv/attention.h). Without chunks there is one pass over all.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "src/attention/query_forms.h"
#include "topkv/attention.h"
#include "topkv/types.h"

namespace topkv {

inline constexpr PositionRange all_positions{0, std::numeric_limits<std::int64_t>::max()};

struct ChunkPass {
  QueryForm form = QueryForm::own;
  PositionRange sees = all_positions;  ///< positions that the queries meet

  /// [tokens, q_heads, head_dim]
  const float* queries(const AttentionStep& step) const {
    return form == QueryForm::own ? step.q : form == QueryForm::next ? step.q_next : step.q_far;
  }
};

/// Those of some tokens of one chunk. The first is that of the chunk itself, and each later one is
/// of the positions before.
class ChunkPasses {
 public:
  /// One pass over all positions.
  ChunkPasses() : ChunkPasses(all_positions) {}
  /// One pass over the positions `sees`.
  explicit ChunkPasses(const PositionRange& sees) { add({QueryForm::own, sees}); }
  /// position: of one of the tokens. REQUIRES: the step has the queries (check_chunks).
  ChunkPasses(const AttentionShape& shape, const AttentionStep& step, std::int64_t position) {
    const std::int64_t own = shape.chunk_len > 0 ? position / shape.chunk_len * shape.chunk_len : 0;
    add({QueryForm::own, {own, all_positions.end}});
    if (own == 0) return;
    const bool alike = step.q_next == step.q_far;
    const std::int64_t next = alike ? 0 : own - shape.chunk_len;
    add({alike ? QueryForm::far : QueryForm::next, {next, own}});
    if (next > 0) add({QueryForm::far, {0, next}});
  }

  std::int64_t size() const { return size_; }
  const ChunkPass* begin() const { return passes_.data(); }
  const ChunkPass* end() const { return passes_.data() + size_; }
  const ChunkPass& operator[](std::int64_t i) const { return begin()[i]; }

 private:
  void add(const ChunkPass& pass) { passes_[static_cast<std::size_t>(size_++)] = pass; }

  std::array<ChunkPass, query_forms> passes_;
  std::int64_t size_ = 0;
};

/// use(begin, count, passes) for the tokens of a step that are of one chunk, chunk by chunk: number
/// begin and on. first: the position of number 0.
template <class Use>
void each_chunk(const AttentionShape& shape, const AttentionStep& step, std::int64_t first,
                const Use& use) {
  for (std::int64_t begin = 0, count = 0; begin < step.tokens; begin += count) {
    const std::int64_t position = first + begin;
    count = step.tokens - begin;
    if (shape.chunk_len > 0) count = std::min(count, shape.chunk_len - position % shape.chunk_len);
    use(begin, count, ChunkPasses(shape, step, position));
  }
}

}  // namespace topkv
