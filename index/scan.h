// What exact scans over consecutive keys have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "src/core/topk.h"
#include "topkv/key_index.h"

namespace topkv {

/// Pushes scores[i] at position first + i. Scores that are NaN are skipped.
/// Most scores of a scan are below the threshold; groups of them are dismissed by one test.
inline void push_scores(const float* scores, std::int64_t count, std::int64_t first,
                        TopKeeper& keeper) {
  constexpr std::int64_t group = 32;
  float threshold = keeper.threshold();
  std::int64_t i = 0;
  for (; i + group <= count; i += group) {
    int any = 0;
    for (std::int64_t j = 0; j < group; ++j) any |= static_cast<int>(scores[i + j] >= threshold);
    if (any == 0) continue;
    for (std::int64_t j = i; j < i + group; ++j) {
      if (scores[j] >= threshold) {
        keeper.push(scores[j], first + j);
        threshold = keeper.threshold();
      }
    }
  }
  for (; i < count; ++i) {
    if (scores[i] >= threshold) {
      keeper.push(scores[i], first + i);
      threshold = keeper.threshold();
    }
  }
}

/// Writes what a keeper holds as the result of one query, best first. Empties the keeper's order:
/// reset it before the next push.
inline void write_result(TopKeeper& keeper, std::int64_t query, SearchResult& result) {
  const std::span<const Scored> best = keeper.sorted();
  const auto positions = result.position_slots(query);
  const auto scores = result.score_slots(query);
  for (std::size_t i = 0; i < best.size(); ++i) {
    positions[i] = best[i].position;
    scores[i] = best[i].score;
  }
  result.set_count(query, static_cast<std::int64_t>(best.size()));
}

}  // namespace topkv
