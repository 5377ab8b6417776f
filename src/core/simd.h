// What every Highway translation unit of topkv shares. Include it after foreach_target.h and
// inside HWY_BEFORE_NAMESPACE, per target: it has no include guard against that on purpose.
//
//   load_float<DType>(d, p)  N elements of a stored type, widened exactly to float32 (p unaligned)
//   add_products_of_4(…)     what AVX-512 VNNI does in one instruction

#if defined(TOPKV_SIMD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOPKV_SIMD_H_
#undef TOPKV_SIMD_H_
#else
#define TOPKV_SIMD_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "topkv/types.h"

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <DType dtype, class D>
HWY_INLINE hn::Vec<D> load_float(D d, const std::byte* p) {
  if constexpr (dtype == DType::f32) {
    return hn::LoadU(d, reinterpret_cast<const float*>(p));
  } else if constexpr (dtype == DType::bf16) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<std::uint32_t, D> d32;
    const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
  } else {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
  }
}

/// One element.
template <DType dtype>
HWY_INLINE float load_float_1(const std::byte* p) {
  if constexpr (dtype == DType::f32) {
    float value;
    std::memcpy(&value, p, sizeof value);
    return value;
  } else if constexpr (dtype == DType::bf16) {
    std::uint16_t half;
    std::memcpy(&half, p, sizeof half);
    const std::uint32_t bits = std::uint32_t{half} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  } else {
    const hn::CappedTag<float, 1> d1;
    return hn::GetLane(load_float<DType::f16>(d1, p));
  }
}

/// Calls f.template operator()<dtype>() for the dtype that is known at run time.
template <class F>
HWY_INLINE auto with_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f.template operator()<DType::f32>();
    case DType::f16:
      return f.template operator()<DType::f16>();
    default:
      return f.template operator()<DType::bf16>();
  }
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL

/// sums [16], each and the products of its four bytes without a sign and four with one. For files
/// that define HWY_WANT_AVX3_DL.
using Sums16 = hn::Vec<hn::CappedTag<std::int32_t, 16>>;
HWY_INLINE Sums16 add_products_of_4(Sums16 sums, __m512i bytes, __m512i with_sign) {
  // (Highway 1.0 leaves AVX-512 VNNI out of this target's flags, though it asks for it.)
  asm("vpdpbusd %2, %1, %0" : "+v"(sums.raw) : "v"(bytes), "v"(with_sign));
  return sums;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#endif
