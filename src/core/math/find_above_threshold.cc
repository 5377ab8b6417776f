#include "src/core/math/find_above_threshold.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/math/find_above_threshold.cc"
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
#include "src/core/math/chosen_lanes.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

std::int64_t find_above_any(const float* scores, std::int64_t count, float threshold,
                            std::int32_t* found) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<hn::ScalableTag<float>> di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto limit = hn::Set(d, threshold);
  const auto step = hn::Set(di, static_cast<std::int32_t>(lanes));
  const auto begin = hn::Iota(di, 0);
  std::int64_t size = 0;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    const auto above = [&](std::int64_t v)
                           HWY_ATTR { return hn::Gt(hn::LoadU(d, scores + i + v * lanes), limit); };
    if (hn::AllFalse(d, hn::Or(hn::Or(above(0), above(1)), hn::Or(above(2), above(3))))) continue;
    // No further branch: with some scores above, one for every vector would often be mispredicted.
    auto index = hn::Add(begin, hn::Set(di, static_cast<std::int32_t>(i)));
    for (std::int64_t v = 0; v < 4; ++v) {
      const auto mask = hn::RebindMask(di, above(v));
      hn::StoreU(chosen_first(di, index, mask), di, found + size);  // size <= i: there is room
      size += static_cast<std::int64_t>(hn::CountTrue(di, mask));
      index = hn::Add(index, step);
    }
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
