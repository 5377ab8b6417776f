// What every Highway translation unit of topkv shares. Include it after foreach_target.h and
// inside HWY_BEFORE_NAMESPACE, per target: it has no include guard against that on purpose.
//
//   load_float<DType>(d, p)  N elements of a type, widened exactly to float32 (p unaligned)
//   load_some<DType, n>(d, v, i, channels, bias, out)  n vectors of elements of a stored vector
//   load_at<DType>(d, v, i, channels, bias)  elements i to i + N of a stored vector at v, of q8 and
//       q4 too
//   widen<DType>(d, v, dim, channels, bias, out)  all elements of a stored vector
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

/// The block of q8 or q4 that element i is in.
template <DType dtype>
HWY_INLINE const std::byte* block_at(const std::byte* vector, std::int64_t i) {
  static_assert(in_blocks(dtype));
  return vector + i / 32 * (dtype == DType::q8 ? 34 : 20);
}

/// `vectors` vectors of elements, of a stored vector, from i on. Of q8 and q4, all of them are of
/// one block: vectors * N divides 32 and i. channels [dim] are the scales of KeyView::channels, and
/// bias [dim] is what is added (bias_at; null: nothing); other types have neither.
template <DType dtype, int vectors, class D>
HWY_INLINE void load_some(D d, const std::byte* vector, std::int64_t i, const float* channels,
                          const float* bias, hn::Vec<D>* out) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  if constexpr (!in_blocks(dtype)) {
    (void)channels;
    (void)bias;
    constexpr std::int64_t bytes = dtype == DType::f32 ? 4 : 2;
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v)
      out[v] = load_float<dtype>(d, vector + (i + v * lanes) * bytes);
  } else {
    const std::byte* block = block_at<dtype>(vector, i);
    const auto scale = hn::Set(d, load_float_1<DType::f16>(block));
    const hn::RebindToSigned<D> d32;
    if constexpr (dtype == DType::q8) {
      const hn::Rebind<std::int8_t, D> d8;
      const auto* codes = reinterpret_cast<const std::int8_t*>(block + 2) + i % 32;
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) {
        const auto code = hn::PromoteTo(d32, hn::LoadU(d8, codes + v * lanes));
        out[v] = hn::Mul(hn::ConvertTo(d, code), scale);
      }
    } else {
      const hn::Rebind<std::uint8_t, D> d8;
      const auto least = hn::Set(d, load_float_1<DType::f16>(block + 2));
#pragma GCC unroll 16
      for (int v = 0; v < vectors; ++v) {
        const std::int64_t in_block = i % 32 + v * lanes;
        const auto pairs = hn::PromoteTo(
            d32, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(block + 4) + in_block % 16));
        const auto code =
            in_block < 16 ? hn::And(pairs, hn::Set(d32, 15)) : hn::ShiftRight<4>(pairs);
        out[v] = hn::MulAdd(hn::ConvertTo(d, code), scale, least);
      }
    }
    // A product with a power of two is exact, so that it does not matter if it is fused.
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v)
      out[v] = hn::Mul(out[v], hn::LoadU(d, channels + i + v * lanes));
    if (bias == nullptr) return;
#pragma GCC unroll 16
    for (int v = 0; v < vectors; ++v) out[v] = hn::Add(out[v], hn::LoadU(d, bias + i + v * lanes));
  }
}

/// Elements i to i + N, likewise.
template <DType dtype, class D>
HWY_INLINE hn::Vec<D> load_at(D d, const std::byte* vector, std::int64_t i, const float* channels,
                              const float* bias) {
  hn::Vec<D> out[1];
  load_some<dtype, 1>(d, vector, i, channels, bias, out);
  return out[0];
}

/// Element i, likewise.
template <DType dtype>
HWY_INLINE float load_at_1(const std::byte* vector, std::int64_t i, const float* channels,
                           const float* bias) {
  if constexpr (!in_blocks(dtype)) {
    (void)channels;
    (void)bias;
    return load_float_1<dtype>(vector + i * (dtype == DType::f32 ? 4 : 2));
  } else {
    const hn::CappedTag<float, 1> d1;
    return hn::GetLane(load_at<dtype>(d1, vector, i, channels, bias));
  }
}

/// out[0 .. dim) = a stored vector, in vectors of d; channels, bias: as load_at has them.
template <DType dtype, class D>
HWY_INLINE void widen(D d, const std::byte* vector, std::int64_t dim, const float* channels,
                      const float* bias, float* out) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr int of_block = 32 / hn::MaxLanes(d);
  std::int64_t i = 0;
  for (; i + 32 <= dim; i += 32) {
    hn::Vec<D> x[of_block];
    load_some<dtype, of_block>(d, vector, i, channels, bias, x);
#pragma GCC unroll 16
    for (int v = 0; v < of_block; ++v) hn::StoreU(x[v], d, out + i + v * lanes);
  }
  for (; i + lanes <= dim; i += lanes)
    hn::StoreU(load_at<dtype>(d, vector, i, channels, bias), d, out + i);
  for (; i < dim; ++i) out[i] = load_at_1<dtype>(vector, i, channels, bias);
}

/// Calls f.template operator()<dtype>() for the dtype of tensors that is known at run time.
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

/// The same for that of stored vectors.
template <class F>
HWY_INLINE auto with_stored(DType dtype, F&& f) {
  if (dtype == DType::q8) return f.template operator()<DType::q8>();
  if (dtype == DType::q4) return f.template operator()<DType::q4>();
  return with_dtype(dtype, f);
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
