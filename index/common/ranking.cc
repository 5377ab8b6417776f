#include "index/common/ranking.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

namespace topkv {
namespace {

constexpr int digit_bits = 11;  // three digits make a score; their counts fit the first-level cache
constexpr int digits = 3;
constexpr std::size_t values = std::size_t{1} << digit_bits;

std::size_t digit(std::uint64_t key, int i) { return key >> (32 + i * digit_bits) & (values - 1); }

/// Orders as scores do, largest first.
std::uint32_t descending(float score) {
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);  // -0 equals 0
  return bits >> 31 != 0 ? bits : ~(bits | 0x80000000U);
}

}  // namespace

void Ranking::sort_by_score() {
  std::array<std::array<std::uint32_t, values>, digits> starts{};
  for (const std::uint64_t key : keys_) {
    for (int i = 0; i < digits; ++i) ++starts[static_cast<std::size_t>(i)][digit(key, i)];
  }
  other_.resize(keys_.size());
  for (int i = 0; i < digits; ++i) {
    auto& start = starts[static_cast<std::size_t>(i)];
    std::uint32_t sum = 0;
    for (std::uint32_t& s : start) sum += std::exchange(s, sum);
    for (const std::uint64_t key : keys_) other_[start[digit(key, i)]++] = key;
    keys_.swap(other_);
  }
}

std::span<const Scored> Ranking::best_first(std::span<const Scored> all, std::int64_t k) {
  const std::size_t size = std::min(all.size(), static_cast<std::size_t>(k));
  // Counting pays for some hundreds, and places are 32 bits.
  if (all.size() < 512 || all.size() > std::numeric_limits<std::uint32_t>::max()) {
    best_.assign(all.begin(), all.end());
    const auto end = best_.begin() + static_cast<std::ptrdiff_t>(size);
    if (end != best_.end()) std::nth_element(best_.begin(), end, best_.end(), ranks_before);
    std::sort(best_.begin(), end, ranks_before);
    best_.resize(size);
    return best_;
  }
  keys_.resize(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    keys_[i] = std::uint64_t{descending(all[i].score)} << 32 | i;
  }
  sort_by_score();
  // Of equal scores the lower position first; those that are equal to the k-th reach beyond it.
  const auto place = [](std::uint64_t key) { return static_cast<std::uint32_t>(key); };
  for (std::size_t i = 0; i < size;) {
    std::size_t end = i + 1;
    while (end < keys_.size() && keys_[end] >> 32 == keys_[i] >> 32) ++end;
    if (end - i > 1) {
      std::sort(keys_.begin() + static_cast<std::ptrdiff_t>(i),
                keys_.begin() + static_cast<std::ptrdiff_t>(end),
                [&](std::uint64_t a, std::uint64_t b) {
                  return all[place(a)].position < all[place(b)].position;
                });
    }
    i = end;
  }
  best_.resize(size);
  for (std::size_t i = 0; i < size; ++i) best_[i] = all[place(keys_[i])];
  return best_;
}

}  // namespace topkv
