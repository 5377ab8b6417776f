#include "src/core/above.h"

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
  const hn::RebindToSigned<hn::ScalableTag<float>> di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto limit = hn::Set(d, threshold);
  const auto step = hn::Set(di, static_cast<std::int32_t>(lanes));
  auto index = hn::Iota(di, 0);
  std::int64_t size = 0;
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    // No branch: with a score in a hundred above, one for every vector would often be mispredicted.
    const auto above = hn::RebindMask(di, hn::Gt(hn::LoadU(d, scores + i), limit));
    hn::StoreU(hn::Compress(index, above), di, found + size);  // size <= i: there is room
    size += static_cast<std::int64_t>(hn::CountTrue(di, above));
    index = hn::Add(index, step);
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
