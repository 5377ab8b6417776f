// Keeps the k largest scores of a stream, ties to the lower position: a total order, so that the
// result does not depend on how the stream was cut into pieces.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace topkv {

struct Scored {
  float score;
  std::int64_t position;
};

/// a ranks before b. An object and not a function, so that algorithms inline it.
inline constexpr auto ranks_before = [](const Scored& a, const Scored& b) {
  return a.score > b.score || (a.score == b.score && a.position < b.position);
};

class TopKeeper {
 public:
  /// Empties it; k > 0. Allocates only when k grows.
  void reset(std::int64_t k) {
    k_ = static_cast<std::size_t>(k);
    heap_.clear();
    heap_.reserve(k_);
  }

  /// A score below this cannot enter. -inf while fewer than k are held.
  float threshold() const {
    return heap_.size() < k_ ? -std::numeric_limits<float>::infinity() : heap_.front().score;
  }

  void push(float score, std::int64_t position) {
    const Scored candidate{score, position};
    if (heap_.size() < k_) {
      heap_.push_back(candidate);
      std::push_heap(heap_.begin(), heap_.end(), ranks_before);
    } else if (ranks_before(candidate, heap_.front())) {
      std::pop_heap(heap_.begin(), heap_.end(), ranks_before);
      heap_.back() = candidate;
      std::push_heap(heap_.begin(), heap_.end(), ranks_before);
    }
  }

  /// Best first. Destroys the heap: reset before the next push.
  std::span<const Scored> sorted() {
    std::sort_heap(heap_.begin(), heap_.end(), ranks_before);
    return heap_;
  }

  /// What is held, in no order.
  std::span<const Scored> held() const { return heap_; }

 private:
  std::size_t k_ = 1;
  std::vector<Scored> heap_;  // the worst in front
};

}  // namespace topkv
