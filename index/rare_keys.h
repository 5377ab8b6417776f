// Keys that an approximate structure stands for worst: an index keeps a list of them, and every
// search scores those of the list exactly beside what the structure proposes.
//
// Rare keys (a needle's, in a text that repeats itself) lie where an index learned nothing: outside
// the axes of codes, far from every centroid, at the end of links that nearer neighbours take from
// them. Without the list searches find nearly all they should on average, and lose just what was
// asked for.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "topkv/types.h"

namespace topkv {

class RareKeys {
 public:
  /// Of so many keys one is on the list.
  explicit RareKeys(std::int64_t keys_per_rare) : keys_per_rare_(keys_per_rare) {}

  /// Replaces the list by those of keys 0, 1, … whose residuals are largest, and notes how large
  /// that is. residuals: how badly each is stood for; not NaN.
  void learn(std::span<const float> residuals);

  /// Those of keys first, first + 1, …, all behind the ones that are known, with residuals as
  /// large.
  void add(std::int64_t first, std::span<const float> residuals);

  void clear() { *this = RareKeys(keys_per_rare_); }

  /// Ascending.
  std::span<const std::int64_t> positions() const { return positions_; }
  std::span<const std::int64_t> positions(PositionRange range) const;

  std::int64_t memory() const {
    return static_cast<std::int64_t>(positions_.capacity() * sizeof(positions_[0]));
  }

 private:
  std::int64_t keys_per_rare_;
  std::vector<std::int64_t> positions_;
  float above_ = 0;  // residual
};

}  // namespace topkv
