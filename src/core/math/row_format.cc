#include "src/core/math/row_format.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/core/math/convert.h"
#include "src/core/math/key_bias.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/math/row_format.cc"
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

using Floats = hn::CappedTag<float, 16>;

constexpr std::int64_t block_elements = 32;

void decode_any(const KeyView& vectors, std::int64_t position, float* out) {
  const std::byte* vector = vectors.key(position);
  const float* channels = channels_of(vectors);
  const float* bias = bias_at(vectors, position);
  with_stored(vectors.dtype,
              [&]<DType t>() { widen<t>(Floats(), vector, vectors.dim, channels, bias, out); });
}

/// A scale as it will be read: rounded to f16, and stored.
HWY_INLINE float store_f16(float value, std::byte* to) {
  from_float(&value, 1, DType::f16, to);
  return load_float_1<DType::f16>(to);
}

/// x: a block, padded with zeros. All divisions and roundings are those of IEEE, so that a device
/// comes to the same codes.
HWY_INLINE void encode_q8(const float* x, std::byte* out) {
  const Floats d;
  const hn::Rebind<std::int8_t, Floats> d8;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto high = hn::Zero(d);
  for (std::int64_t i = 0; i < block_elements; i += lanes)
    high = hn::Max(high, hn::Abs(hn::LoadU(d, x + i)));
  const float scale = store_f16(hn::GetLane(hn::MaxOfLanes(d, high)) / 127, out);
  auto* codes = reinterpret_cast<std::int8_t*>(out + 2);
  if (scale == 0) {
    std::fill_n(codes, block_elements, std::int8_t{0});
    return;
  }
  const auto by = hn::Set(d, scale);
  const auto most = hn::Set(d, 127.0F);
  for (std::int64_t i = 0; i < block_elements; i += lanes) {
    const auto code = hn::Div(hn::LoadU(d, x + i), by);
    const auto in_range = hn::Max(hn::Min(code, most), hn::Neg(most));
    hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(in_range)), d8, codes + i);
  }
}

HWY_INLINE void encode_q4(const float* x, std::byte* out) {
  const auto [low, high] = std::minmax_element(x, x + block_elements);
  const float least = store_f16(*low, out + 2);
  const float scale = store_f16((*high - least) / 15, out);
  const auto code = [&](std::int64_t i) {
    if (!(scale > 0) || std::isinf(scale)) return 0;
    return static_cast<int>(std::nearbyint(std::clamp((x[i] - least) / scale, 0.0F, 15.0F)));
  };
  constexpr std::int64_t half = block_elements / 2;
  for (std::int64_t i = 0; i < half; ++i)
    out[4 + i] = static_cast<std::byte>(code(i) | code(i + half) << 4);
}

void encode_any(const float* in, std::int64_t dim, DType dtype, const float* channels,
                std::byte* out, const float* bias) {
  if (!in_blocks(dtype)) {
    from_float(in, dim, dtype, out);
    return;
  }
  const std::int64_t bytes = vector_bytes(dtype, block_elements);
  for (std::int64_t first = 0; first < dim; first += block_elements, out += bytes) {
    float x[block_elements] = {};
    const std::int64_t count = std::min(block_elements, dim - first);
    for (std::int64_t i = 0; i < count; ++i) {
      x[i] = bias != nullptr ? in[first + i] - bias[first + i] : in[first + i];
      if (channels != nullptr) x[i] /= channels[first + i];
    }
    if (dtype == DType::q8) {
      encode_q8(x, out);
    } else {
      encode_q4(x, out);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(decode_any);
HWY_EXPORT(encode_any);

void decode(const KeyView& vectors, std::int64_t position, float* out) {
  HWY_DYNAMIC_DISPATCH(decode_any)(vectors, position, out);
}

void encode(const float* in, std::int64_t dim, DType dtype, const float* channels, std::byte* out,
            const float* bias) {
  HWY_DYNAMIC_DISPATCH(encode_any)(in, dim, dtype, channels, out, bias);
}

void choose_channels(const float* vectors, std::int64_t count, std::int64_t dim, float* out) {
  std::fill_n(out, dim, 1.0F);
  if (count < least_for_channels) return;
  std::vector<double> squares(static_cast<std::size_t>(dim));
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t i = 0; i < dim; ++i) {
      const double x = vectors[r * dim + i];
      squares[static_cast<std::size_t>(i)] += x * x;
    }
  }
  std::vector<double> sorted = squares;
  std::ranges::nth_element(sorted, sorted.begin() + dim / 2);
  const double median = sorted[static_cast<std::size_t>(dim / 2)];
  if (!(median > 0)) return;
  constexpr long most = 24;  // a power of two: far beyond any network's
  for (std::int64_t i = 0; i < dim; ++i) {
    const double over = squares[static_cast<std::size_t>(i)] / median;
    if (over <= 1) continue;
    out[i] = std::ldexp(1.0F, static_cast<int>(std::min(std::lround(std::log2(over) / 2), most)));
  }
}

const float* channels_of(const KeyView& vectors) {
  if (!in_blocks(vectors.dtype)) return nullptr;
  if (vectors.channels != nullptr) return vectors.channels;
  thread_local std::vector<float> ones;
  if (static_cast<std::int64_t>(ones.size()) < vectors.dim)
    ones.resize(static_cast<std::size_t>(vectors.dim), 1.0F);
  return ones.data();
}

}  // namespace topkv
#endif
