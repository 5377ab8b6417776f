// Queries of a prefill, which some methods learn from.
#pragma once

#include <cstdint>
#include <span>

namespace topkv {

/// Of one KV head. Memory is the caller's.
struct PrefillQueries {
  std::span<const std::int64_t> positions =
      {};                       ///< of their tokens, ascending but for the break below
  const float* data = nullptr;  ///< [positions, group, dim]
  std::int64_t group = 1;
  std::int64_t dim = 0;
  float scale = 1;    ///< of scores
  float softcap = 0;  ///< AttentionShape::softcap
  /// The first so many positions are spread evenly over the text; those behind them are of its last
  /// tokens, next to each other.
  std::int64_t spread = 0;

  /// The queries [group, dim] of a token, by its number among positions.
  const float* token(std::int64_t number) const { return data + number * group * dim; }
};

}  // namespace topkv
