#include "src/core/above.h"

#include <bit>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/above.cc"
#include <hwy/foreach_target.h>
#include "src/core/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

std::int64_t find_above_any(const float* scores, std::int64_t count, float threshold,
                            std::int32_t* found) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto limit = hn::Set(d, threshold);
  std::int64_t size = 0;
  const auto take = [&](std::int64_t first, auto mask) {
    std::uint8_t bytes[8] = {};
    hn::StoreMaskBits(d, mask, bytes);
    std::uint64_t bits;
    std::memcpy(&bits, bytes, sizeof bits);
    for (; bits != 0; bits &= bits - 1) {
      found[size++] = static_cast<std::int32_t>(first + std::countr_zero(bits));
    }
  };
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {  // one branch for four vectors
    const auto a = hn::Gt(hn::LoadU(d, scores + i), limit);
    const auto b = hn::Gt(hn::LoadU(d, scores + i + lanes), limit);
    const auto c = hn::Gt(hn::LoadU(d, scores + i + 2 * lanes), limit);
    const auto e = hn::Gt(hn::LoadU(d, scores + i + 3 * lanes), limit);
    if (hn::AllFalse(d, hn::Or(hn::Or(a, b), hn::Or(c, e)))) continue;
    take(i, a);
    take(i + lanes, b);
    take(i + 2 * lanes, c);
    take(i + 3 * lanes, e);
  }
  for (; i < count; ++i) {
    if (scores[i] > threshold) found[size++] = static_cast<std::int32_t>(i);
  }
  return size;
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(find_above_any);

std::int64_t find_above(const float* scores, std::int64_t count, float threshold,
                        std::int32_t* found) {
  return HWY_DYNAMIC_DISPATCH(find_above_any)(scores, count, threshold, found);
}

}  // namespace topkv
#endif
