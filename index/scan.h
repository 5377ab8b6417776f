// What exact scans over consecutive keys have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "src/core/topk.h"
#include "topkv/key_index.h"

namespace topkv {

/// Keeps the k best of a long stream of scores, in the same total order as TopKeeper. It sorts out
/// the k best of 2k now and then instead of keeping a heap, which for large k is several times
/// faster; the price is a threshold that lags behind.
class ScanKeeper {
 public:
  /// Empties it; k > 0. Allocates only when more is held than ever before.
  void reset(std::int64_t k) {
    k_ = static_cast<std::size_t>(k);
    held_.clear();
    threshold_ = -std::numeric_limits<float>::infinity();
  }

  /// Takes scores[i] at position first + i. Scores that are NaN are skipped.
  void push(const float* scores, std::int64_t count, std::int64_t first) {
    // Most scores of a scan are below the threshold: groups of them are dismissed by one test.
    constexpr std::int64_t group = 32;
    std::int64_t i = 0;
    for (; i + group <= count; i += group) {
      int any = 0;
      for (std::int64_t j = 0; j < group; ++j) {
        any |= static_cast<int>(scores[i + j] >= threshold_);
      }
      if (any != 0) push_each(scores + i, group, first + i);
    }
    push_each(scores + i, count - i, first + i);
  }

  void merge(const ScanKeeper& other) {
    for (const Scored& scored : other.held_) take(scored);
  }

  /// The k best, best first. Reset before the next push.
  std::span<const Scored> sorted() {
    if (held_.size() > k_) shrink();
    std::sort(held_.begin(), held_.end(), ranks_before);
    return held_;
  }

 private:
  void push_each(const float* scores, std::int64_t count, std::int64_t first) {
    for (std::int64_t i = 0; i < count; ++i) take({scores[i], first + i});
  }

  void take(const Scored& scored) {
    if (!(scored.score >= threshold_)) return;
    held_.push_back(scored);
    // At least 64 more, so that a small k does not shrink at every other key.
    if (held_.size() >= k_ + std::max<std::size_t>(k_, 64)) shrink();
  }

  void shrink() {
    const auto kth = held_.begin() + static_cast<std::ptrdiff_t>(k_) - 1;
    std::nth_element(held_.begin(), kth, held_.end(), ranks_before);
    threshold_ = kth->score;
    held_.resize(k_);
  }

  std::size_t k_ = 1;
  float threshold_ = 0.0F;  // a score below it is not among the k best
  std::vector<Scored> held_;
};

/// Writes the result of one query; best: best first, at most k of them.
inline void write_result(std::span<const Scored> best, std::int64_t query, SearchResult& result) {
  const auto positions = result.position_slots(query);
  const auto scores = result.score_slots(query);
  for (std::size_t i = 0; i < best.size(); ++i) {
    positions[i] = best[i].position;
    scores[i] = best[i].score;
  }
  result.set_count(query, static_cast<std::int64_t>(best.size()));
}

}  // namespace topkv
