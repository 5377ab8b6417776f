#include "src/core/math/ranked_score.h"

#include <algorithm>
#include <bit>
#include <limits>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/math/ranked_score.cc"
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
#include "src/core/math/chosen_lanes.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

std::int64_t count_from_any(const float* scores, std::int64_t count, float least) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto limit = hn::Set(d, least);
  std::size_t found = 0;
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    found += hn::CountTrue(d, hn::Ge(hn::LoadU(d, scores + i), limit));
  for (; i < count; ++i) found += scores[i] >= least ? 1 : 0;
  return static_cast<std::int64_t>(found);
}

/// Writes those that are `least` or more to out, and returns how many there are. out: room for
/// count; it may be `scores`, as nothing is written before it was read.
std::int64_t take_from_any(const float* scores, std::int64_t count, float least, float* out) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto limit = hn::Set(d, least);
  std::int64_t size = 0;
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto x = hn::LoadU(d, scores + i);
    const auto mask = hn::Ge(x, limit);
    // Of a whole vector, as size <= i: some processors take long to store a compressed one.
    hn::StoreU(chosen_first(d, x, mask), d, out + size);
    size += static_cast<std::int64_t>(hn::CountTrue(d, mask));
  }
  for (; i < count; ++i) {
    const float x = scores[i];
    if (x >= least) out[size++] = x;
  }
  return size;
}

/// The least and the largest; count > 0.
void bounds_any(const float* scores, std::int64_t count, float* least, float* most) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto low = hn::Set(d, scores[0]);
  auto high = low;
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto x = hn::LoadU(d, scores + i);
    low = hn::Min(low, x);
    high = hn::Max(high, x);
  }
  *least = hn::GetLane(hn::MinOfLanes(d, low));
  *most = hn::GetLane(hn::MaxOfLanes(d, high));
  for (; i < count; ++i) {
    *least = std::min(*least, scores[i]);
    *most = std::max(*most, scores[i]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(count_from_any);
HWY_EXPORT(take_from_any);
HWY_EXPORT(bounds_any);

namespace {

constexpr int halvings = 8;  // of the values; of what can be represented afterwards

/// Numbers in the order of the floats that they stand for.
std::int64_t number_of(float x) {
  const auto bits = std::bit_cast<std::int32_t>(x);
  return bits < 0 ? -std::int64_t{bits & 0x7FFFFFFF} : bits;
}

float score_of(std::int64_t number) {
  const float x = std::bit_cast<float>(static_cast<std::int32_t>(number < 0 ? -number : number));
  return number < 0 ? -x : x;
}

}  // namespace

std::int64_t count_from(const float* scores, std::int64_t count, float least) {
  return HWY_DYNAMIC_DISPATCH(count_from_any)(scores, count, least);
}

// Halves the interval that the score lies in, and leaves out what lies below: after a few passes
// hardly any scores remain. Sorting out, as std::nth_element does, costs several times as much.
float ranked_score(const float* scores, std::int64_t count, std::int64_t rank,
                   std::vector<float>& room) {
  room.resize(static_cast<std::size_t>(count));
  float* left = room.data();
  std::int64_t size = HWY_DYNAMIC_DISPATCH(take_from_any)(
      scores, count, std::numeric_limits<float>::lowest(), left);
  float least = 0;
  float most = 0;
  HWY_DYNAMIC_DISPATCH(bounds_any)(left, size, &least, &most);
  std::int64_t low = number_of(least);      // at least `rank` scores reach it
  std::int64_t high = number_of(most) + 1;  // fewer do
  for (int pass = 0; high - low > 1 && size > rank; ++pass) {
    std::int64_t middle = low + (high - low) / 2;
    if (pass < halvings) {
      const float by_value = score_of(low) / 2 + score_of(high) / 2;
      middle = std::clamp(number_of(by_value), low + 1, high - 1);
    }
    const float bound = score_of(middle);
    const std::int64_t reach = count_from(left, size, bound);
    (reach >= rank ? low : high) = middle;
    if (reach >= rank && reach < size)
      size = HWY_DYNAMIC_DISPATCH(take_from_any)(left, size, bound, left);
  }
  if (size > rank) return score_of(low);
  HWY_DYNAMIC_DISPATCH(bounds_any)(left, size, &least, &most);
  return least;
}

}  // namespace topkv
#endif
