#include "index/common/rare_keys.h"

#include <algorithm>
#include <bit>
#include <cmath>
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

void RareKeys::fields(std::int64_t keys, Archive& archive) {
  archive.array(positions_);
  auto above = std::bit_cast<std::uint32_t>(above_);  // may be infinite
  archive.value(above);
  if (!archive.reading()) return;
  above_ = std::bit_cast<float>(above);
  archive.check(!std::isnan(above_), "a residual is not a number");
  for (std::size_t i = 0; i < positions_.size(); ++i) {
    archive.check(positions_[i] > (i == 0 ? -1 : positions_[i - 1]) && positions_[i] < keys,
                  "rare keys do not ascend within the keys");
  }
}

}  // namespace topkv
