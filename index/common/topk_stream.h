// The k best of a stream of scores, which a scan over consecutive keys makes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "src/core/math/find_above_threshold.h"
#include "src/core/math/topk.h"
#include "topkv/key_index.h"

namespace topkv {

inline constexpr float no_threshold = -std::numeric_limits<float>::infinity();

/// Keeps the k best of a long stream of scores, in the same total order as TopKeeper. It sorts out
/// the k best of 2k now and then instead of keeping a heap, which for large k is several times
/// faster; the price is a threshold that lags behind.
class TopKStream {
 public:
  /// Empties it; k > 0. It will keep the k best of the scores above `threshold`, and of all
  /// scores, -inf too, when that is no_threshold. Allocates only when more is held than ever
  /// before.
  void reset(std::int64_t k, float threshold = no_threshold) {
    k_ = static_cast<std::size_t>(k);
    held_.clear();
    takes_all_ = threshold == no_threshold;
    threshold_ = threshold;
    // At least 64 more than k, so that a small k is not sorted out at every other key; and several
    // times k above a threshold, which is given so that little more than k exceed it.
    room_ = k_ + std::max<std::size_t>(takes_all_ ? k_ : 3 * k_, 64);
  }

  /// Takes scores[i] at position first + i. Scores that are NaN are skipped.
  /// REQUIRES: positions ascend from call to call; so a tie with the k-th best comes too late.
  void push(const float* scores, std::int64_t count, std::int64_t first) {
    constexpr std::int64_t piece = 512;
    std::int32_t above[piece];
    for (std::int64_t begin = 0; begin < count; begin += piece) {
      const std::int64_t size = std::min(piece, count - begin);
      if (takes_all_ && held_.size() < k_) {
        for (std::int64_t i = begin; i < begin + size; ++i) {
          if (held_.size() < k_ ? !std::isnan(scores[i]) : scores[i] > threshold_) {
            take(scores[i], first + i);
          }
        }
        continue;
      }
      const std::int64_t found = find_above(scores + begin, size, threshold_, above);
      for (std::int64_t i = 0; i < found; ++i) {
        const std::int64_t at = begin + above[i];
        if (scores[at] > threshold_) take(scores[at], first + at);  // it may have risen meanwhile
      }
    }
  }

  /// What is held, in no order: the k best and possibly others.
  std::span<const Scored> held() const { return held_; }

  /// The k best, in no order. Reset before the next push.
  std::span<const Scored> best() {
    if (held_.size() > k_) cut();
    return held_;
  }

  /// The k best, best first. Reset before the next push.
  std::span<const Scored> sorted() {
    if (held_.size() > k_) cut();
    std::sort(held_.begin(), held_.end(), ranks_before);
    return held_;
  }

 private:
  void take(float score, std::int64_t position) {
    held_.push_back({score, position});
    if (held_.size() < room_) return;
    cut();
    threshold_ = held_.back().score;
  }

  /// Leaves the k best, the k-th last.
  void cut() {
    const auto kth = held_.begin() + static_cast<std::ptrdiff_t>(k_) - 1;
    std::nth_element(held_.begin(), kth, held_.end(), ranks_before);
    held_.resize(k_);
  }

  std::size_t k_ = 1;
  std::size_t room_ = 1;  // what is held is cut to k when it gets here
  bool takes_all_ = true;
  float threshold_ = no_threshold;  // the k-th best score when last looked at
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
