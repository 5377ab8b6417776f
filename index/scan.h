// What exact scans over consecutive keys have in common.
#pragma once

#include <algorithm>
#include <cmath>
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
  /// REQUIRES: positions ascend from call to call; so a tie with the k-th best comes too late.
  void push(const float* scores, std::int64_t count, std::int64_t first) {
    // Most scores of a scan are too small: groups of them are dismissed by one test.
    constexpr std::int64_t group = 32;
    std::int64_t i = 0;
    for (; i + group <= count; i += group) {
      int any = static_cast<int>(held_.size() < k_);
      for (std::int64_t j = 0; j < group; ++j) {
        any |= static_cast<int>(scores[i + j] > threshold_);
      }
      if (any != 0) push_each(scores + i, group, first + i);
    }
    push_each(scores + i, count - i, first + i);
  }

  /// Takes what another holds, whose positions may be any.
  void merge(const ScanKeeper& other) {
    held_.insert(held_.end(), other.held_.begin(), other.held_.end());
    if (held_.size() > k_) shrink();
  }

  /// The k best, best first. Reset before the next push.
  std::span<const Scored> sorted() {
    if (held_.size() > k_) shrink();
    std::sort(held_.begin(), held_.end(), ranks_before);
    return held_;
  }

 private:
  void push_each(const float* scores, std::int64_t count, std::int64_t first) {
    for (std::int64_t i = 0; i < count; ++i) {
      const bool filling = held_.size() < k_ && !std::isnan(scores[i]);
      if (!(scores[i] > threshold_) && !filling) continue;
      held_.push_back({scores[i], first + i});
      // At least 64 more, so that a small k does not shrink at every other key.
      if (held_.size() >= k_ + std::max<std::size_t>(k_, 64)) shrink();
    }
  }

  void shrink() {
    const auto kth = held_.begin() + static_cast<std::ptrdiff_t>(k_) - 1;
    std::nth_element(held_.begin(), kth, held_.end(), ranks_before);
    threshold_ = kth->score;
    held_.resize(k_);
  }

  std::size_t k_ = 1;
  float threshold_ = 0.0F;  // the k-th best score when last looked at
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
