#include "index/codes/code_loops.h"

#include "src/core/math/key_bias.h"
#include "src/core/math/row_format.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "index/codes/code_loops.cc"
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

using Floats = hn::CappedTag<float, 16>;

template <DType dtype>
bool centre_of(const KeyView& vectors, std::int64_t first, std::int64_t count, float scale,
               const float* mean, float* out, float* squares) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float* channels = channels_of(vectors);
  const auto by = hn::Set(d, scale);
  auto finite = hn::Eq(by, by);
  bool rest_finite = true;
  for (std::int64_t i = 0; i < count; ++i, out += vectors.dim) {
    const std::byte* from = vectors.key(first + i);
    const float* bias = bias_at(vectors, first + i);
    auto sum = hn::Zero(d);
    std::int64_t j = 0;
    for (; j + lanes <= vectors.dim; j += lanes) {
      const auto x = load_at<dtype>(d, from, j, channels, bias);
      finite = hn::And(finite, hn::IsFinite(x));
      const auto centred = hn::MulSub(x, by, hn::LoadU(d, mean + j));
      sum = hn::MulAdd(centred, centred, sum);
      hn::StoreU(centred, d, out + j);
    }
    float square = hn::GetLane(hn::SumOfLanes(d, sum));
    for (; j < vectors.dim; ++j) {
      const float x = load_at_1<dtype>(from, j, channels, bias);
      rest_finite = rest_finite && x - x == 0;
      out[j] = x * scale - mean[j];
      square += out[j] * out[j];
    }
    squares[i] = square;
  }
  return rest_finite && hn::AllTrue(d, finite);
}

bool centre_any(const KeyView& vectors, std::int64_t first, std::int64_t count, float scale,
                const float* mean, float* out, float* squares) {
  return with_stored(vectors.dtype, [&]<DType t>() {
    return centre_of<t>(vectors, first, count, scale, mean, out, squares);
  });
}

void nearest_codes_of(const EvenLevels& levels, const float* x, std::int64_t count,
                      std::uint8_t* codes, float* residuals) {
  const Floats d;
  const hn::Rebind<std::int32_t, Floats> d32;
  const hn::Rebind<std::uint8_t, Floats> d8;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto per_step = hn::Set(d, levels.step > 0 ? 1 / levels.step : 0);
  const auto last = hn::Set(d, static_cast<float>(levels.most));
  const auto low = hn::Set(d, levels.low);
  const auto step = hn::Set(d, levels.step);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto value = hn::LoadU(d, x + i);
    const auto at = hn::Mul(hn::Sub(value, low), per_step);
    // The larger of 0 and what is not a number is 0.
    const auto positive = hn::IfThenElseZero(hn::Gt(at, hn::Zero(d)), at);
    const auto code = hn::ConvertTo(d32, hn::Add(hn::Min(positive, last), hn::Set(d, 0.5F)));
    const auto off = hn::Sub(value, hn::MulAdd(step, hn::ConvertTo(d, code), low));
    const auto residual = hn::LoadU(d, residuals + i);
    hn::StoreU(hn::Add(residual, hn::MulSub(off, off, hn::Mul(value, value))), d, residuals + i);
    hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i);
  }
  for (; i < count; ++i) {
    const int code = levels.code_of(x[i]);
    const float off = x[i] - levels.of(code);
    residuals[i] += off * off - x[i] * x[i];
    codes[i] = static_cast<std::uint8_t>(code);
  }
}

void place_slot_of(const std::uint8_t* codes, std::int64_t count, int shift, int bit,
                   std::uint8_t* bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto mask = hn::Set(d, std::uint8_t{3});
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto code = hn::LoadU(d, codes + i);
    const auto slot = hn::And(shift == 0 ? code : hn::ShiftRight<2>(code), mask);
    const auto placed = bit == 0   ? slot
                        : bit == 2 ? hn::ShiftLeft<2>(slot)
                        : bit == 4 ? hn::ShiftLeft<4>(slot)
                                   : hn::ShiftLeft<6>(slot);
    hn::StoreU(hn::Or(hn::LoadU(d, bytes + i), placed), d, bytes + i);
  }
  for (; i < count; ++i) {
    bytes[i] = static_cast<std::uint8_t>(bytes[i] | (codes[i] >> shift & 3) << bit);
  }
}

/// 1 << bit for those of a vector's axes whose upper level is chosen.
HWY_INLINE auto upper_bits(Floats d, const float* x, const float* low, const float* range,
                           std::uint32_t seed, const std::uint32_t* seeds, int bit) {
  const hn::Rebind<std::int32_t, Floats> d32;
  const hn::Rebind<std::uint32_t, Floats> du32;
  const auto hash = hn::ShiftRight<9>(hn::Mul(hn::Set(du32, seed), hn::LoadU(du32, seeds)));
  const auto fraction = hn::ConvertTo(d, hn::BitCast(d32, hash));
  const auto chance = hn::Mul(hn::Add(fraction, hn::Set(d, 0.5F)), hn::Set(d, 0x1p-23F));
  const auto limit = hn::MulAdd(hn::LoadU(d, range), chance, hn::LoadU(d, low));
  const auto above = hn::RebindMask(d32, hn::Gt(hn::LoadU(d, x), limit));
  return hn::IfThenElseZero(above, hn::Set(d32, 1 << bit));
}

void choose_upper_of(const float* x, const float* low, const float* range, std::uint32_t seed,
                     const std::uint32_t* seeds, std::int64_t lanes, int place,
                     std::uint8_t* bytes) {
  const Floats d;
  const hn::Rebind<std::uint8_t, Floats> d8;
  const auto width = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t a = 0; a < lanes; a += width) {
    const std::int64_t b = a + lanes;
    const auto lower = upper_bits(d, x + a, low + a, range + a, seed, seeds + a, place);
    const auto upper = upper_bits(d, x + b, low + b, range + b, seed, seeds + b, place + 4);
    const auto bits = hn::DemoteTo(d8, hn::Or(lower, upper));
    hn::StoreU(hn::Or(hn::LoadU(d8, bytes + a), bits), d8, bytes + a);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(centre_any);
HWY_EXPORT(nearest_codes_of);
HWY_EXPORT(place_slot_of);
HWY_EXPORT(choose_upper_of);

bool centre(const KeyView& vectors, std::int64_t first, std::int64_t count, float scale,
            const float* mean, float* out, float* squares) {
  return HWY_DYNAMIC_DISPATCH(centre_any)(vectors, first, count, scale, mean, out, squares);
}

void nearest_codes(const EvenLevels& levels, const float* x, std::int64_t count,
                   std::uint8_t* codes, float* residuals) {
  HWY_DYNAMIC_DISPATCH(nearest_codes_of)(levels, x, count, codes, residuals);
}

void place_slot(const std::uint8_t* codes, std::int64_t count, int shift, int bit,
                std::uint8_t* bytes) {
  HWY_DYNAMIC_DISPATCH(place_slot_of)(codes, count, shift, bit, bytes);
}

void choose_upper(const float* x, const float* low, const float* range, std::uint32_t seed,
                  const std::uint32_t* seeds, std::int64_t lanes, int place, std::uint8_t* bytes) {
  HWY_DYNAMIC_DISPATCH(choose_upper_of)(x, low, range, seed, seeds, lanes, place, bytes);
}

}  // namespace topkv
#endif
