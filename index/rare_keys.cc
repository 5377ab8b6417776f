#include "index/rare_keys.h"

#include <algorithm>
#include <cstddef>

namespace topkv {

void RareKeys::learn(std::span<const float> residuals) {
  clear();
  if (residuals.empty()) return;
  std::vector<float> sorted(residuals.begin(), residuals.end());
  const std::size_t rare = sorted.size() / static_cast<std::size_t>(keys_per_rare_);
  const auto at = sorted.end() - static_cast<std::ptrdiff_t>(rare) - 1;
  std::nth_element(sorted.begin(), at, sorted.end());
  above_ = *at;
  positions_.reserve(rare);
  add(0, residuals);
}

void RareKeys::add(std::int64_t first, std::span<const float> residuals) {
  for (std::size_t i = 0; i < residuals.size(); ++i) {
    if (residuals[i] > above_) positions_.push_back(first + static_cast<std::int64_t>(i));
  }
}

std::span<const std::int64_t> RareKeys::positions(PositionRange range) const {
  const auto begin = std::lower_bound(positions_.begin(), positions_.end(), range.begin);
  return {begin, std::lower_bound(begin, positions_.end(), range.end)};
}

}  // namespace topkv
