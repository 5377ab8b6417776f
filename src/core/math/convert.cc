#include "src/core/math/convert.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/math/convert.cc"
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;

template <DType dtype>
void to_float_of(const std::byte* in, std::int64_t count, float* out) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t size = dtype == DType::f32 ? 4 : 2;
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(load_float<dtype>(d, in + i * size), d, out + i);
  for (; i < count; ++i) out[i] = load_float_1<dtype>(in + i * size);
}

// Round to nearest even by hand: finite and infinite values only take the carry; NaN keeps a
// mantissa bit set. (Highway's own DemoteTo to bfloat16 truncates.)
std::uint16_t to_bf16_1(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

HWY_INLINE auto to_bf16(hn::Vec<Floats> value) {
  const hn::Rebind<std::uint32_t, Floats> d32;
  const hn::Rebind<std::uint16_t, Floats> d16;
  const auto bits = hn::BitCast(d32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1U));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fffU))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d32, 0x40U));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(value));
  const auto halves = hn::IfThenElse(is_nan, quiet, rounded);
  // The upper halves are zero, so the signed saturating demotion would lose 0x8000 and above:
  // truncate instead.
  return hn::TruncateTo(d16, halves);
}

void from_float_to(const float* in, std::int64_t count, DType dtype, std::byte* out) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  if (count == 0) return;  // in and out may then be null
  if (dtype == DType::f32) {
    std::memcpy(out, in, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  std::int64_t i = 0;
  if (dtype == DType::bf16) {
    const hn::Rebind<std::uint16_t, Floats> d16;
    auto* halves = reinterpret_cast<std::uint16_t*>(out);
    for (; i + lanes <= count; i += lanes) {
      hn::StoreU(to_bf16(hn::LoadU(d, in + i)), d16, halves + i);
    }
    for (; i < count; ++i) halves[i] = to_bf16_1(in[i]);
  } else {
    const hn::Rebind<hwy::float16_t, Floats> d16;
    const hn::CappedTag<float, 1> d1;
    const hn::Rebind<hwy::float16_t, decltype(d1)> d16_1;
    auto* halves = reinterpret_cast<hwy::float16_t*>(out);
    for (; i + lanes <= count; i += lanes) {
      hn::StoreU(hn::DemoteTo(d16, hn::LoadU(d, in + i)), d16, halves + i);
    }
    for (; i < count; ++i) hn::StoreU(hn::DemoteTo(d16_1, hn::Set(d1, in[i])), d16_1, halves + i);
  }
}

void to_float_any(const std::byte* in, DType dtype, std::int64_t count, float* out) {
  with_dtype(dtype, [&]<DType t>() { to_float_of<t>(in, count, out); });
}

std::int64_t first_not_finite_in(const float* in, std::int64_t count) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    if (!hn::AllTrue(d, hn::IsFinite(hn::LoadU(d, in + i)))) break;
  }
  for (; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, in + i, sizeof bits);
    if ((bits & 0x7f800000U) == 0x7f800000U) return i;
  }
  return -1;
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(to_float_any);
HWY_EXPORT(from_float_to);
HWY_EXPORT(first_not_finite_in);

void to_float(const std::byte* in, DType dtype, std::int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(to_float_any)(in, dtype, count, out);
}

void from_float(const float* in, std::int64_t count, DType dtype, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(from_float_to)(in, count, dtype, out);
}

std::int64_t first_not_finite(const float* in, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(first_not_finite_in)(in, count);
}

}  // namespace topkv
#endif
