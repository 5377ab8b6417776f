#include "src/core/math/quantise.h"

#include <algorithm>
#include <cmath>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/math/quantise.cc"
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

using Floats = hn::CappedTag<float, 16>;  // divides a group of int4
using V = hn::Vec<Floats>;

// Groups whose largest weight is below this are 0: a scale would be near the smallest floats.
constexpr float smallest = 1e-30F;
// Scales tried: from all of what the largest weight needs down to half of it.
constexpr int tries = 24;
constexpr float shrink = 0.5F / tries;

struct Range {
  float low = 0;
  float high = 0;
};

Range range_of(const float* w, std::int64_t count) {
  const auto [low, high] = std::minmax_element(w, w + count);
  return {*low, *high};
}

/// round((w - zero) / scale) within [low, high].
HWY_INLINE V code_of(Floats d, const float* w, V zero, V inverse, V low, V high) {
  const V scaled = hn::Mul(hn::Sub(hn::LoadU(d, w), zero), inverse);
  return hn::Round(hn::Min(hn::Max(scaled, low), high));
}

/// What least squares need of codes and weights.
struct Sums {
  float codes = 0;
  float squares = 0;   ///< of codes
  float products = 0;  ///< of codes and weights
};

HWY_INLINE Sums sums_of(const float* w, std::int64_t count, float zero, float inverse, float low,
                        float high) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V codes = hn::Zero(d);
  V squares = hn::Zero(d);
  V products = hn::Zero(d);
  for (std::int64_t i = 0; i < count; i += lanes) {
    const V code =
        code_of(d, w + i, hn::Set(d, zero), hn::Set(d, inverse), hn::Set(d, low), hn::Set(d, high));
    codes = hn::Add(codes, code);
    squares = hn::MulAdd(code, code, squares);
    products = hn::MulAdd(code, hn::LoadU(d, w + i), products);
  }
  return {hn::GetLane(hn::SumOfLanes(d, codes)), hn::GetLane(hn::SumOfLanes(d, squares)),
          hn::GetLane(hn::SumOfLanes(d, products))};
}

void write_codes(const float* w, std::int64_t count, float zero, float inverse, float low,
                 float high, std::int8_t* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float scaled = std::min(std::max((w[i] - zero) * inverse, low), high);
    out[i] = static_cast<std::int8_t>(std::lrintf(scaled));
  }
}

struct Line {
  float scale = 0;
  float offset = 0;
};

/// Of codes and weights less their means, least squares leave the weights' squares less
/// products^2 / squares.
Line fit_line(const float* w, std::int64_t count, std::int8_t* codes) {
  const Range range = range_of(w, count);
  const float middle = range.low / 2 + range.high / 2;
  const float width = range.high / 2 - range.low / 2;
  if (width < smallest) {
    std::fill(codes, codes + count, std::int8_t{0});
    return {0, middle};
  }
  const auto n = static_cast<float>(count);
  float total = 0;
  for (std::int64_t i = 0; i < count; ++i) total += w[i];
  float best = -1;
  float best_inverse = 0;
  float best_zero = 0;
  Line line;
  for (int i = 0; i < tries; ++i) {
    const float scale = width * (1 - shrink * static_cast<float>(i)) / 7.5F;
    const float zero = middle + scale / 2;  // codes are -8 to 7: their middle is -1/2
    const Sums sums = sums_of(w, count, zero, 1 / scale, -8, 7);
    const float spread = sums.squares - sums.codes * sums.codes / n;
    const float along = sums.products - sums.codes * total / n;
    if (!(spread > 0)) continue;
    const float gain = along / spread * along;
    if (gain > best) {
      best = gain;
      best_inverse = 1 / scale;
      best_zero = zero;
      line.scale = along / spread;
      line.offset = (total - line.scale * sums.codes) / n;
    }
  }
  write_codes(w, count, best_zero, best_inverse, -8, 7, codes);
  return line;
}

void quantise_row_any(const Matrix& form, const float* row, const PackedRows& to) {
  for (std::int64_t g = 0; g < form.groups(); ++g) {
    const std::int64_t first = g * form.group;
    const float* w = row + first;
    if (form.packing == Packing::int8) {
      const Range range = range_of(w, form.group);
      const float largest = std::max(range.high, -range.low);
      const bool none = largest < smallest;
      to.scales[g] = none ? 0 : largest / 127;
      write_codes(w, form.group, 0, none ? 0 : 127 / largest, -127, 127,
                  reinterpret_cast<std::int8_t*>(to.codes) + first);
      continue;
    }
    thread_local std::vector<std::int8_t> codes;
    codes.resize(static_cast<std::size_t>(form.group));
    const Line line = fit_line(w, form.group, codes.data());
    to.scales[g] = line.scale;
    to.offsets[g] = line.offset;
    pack_int4(codes.data(), form.group, to.codes + first / 2);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(quantise_row_any);

void quantise_row(const Matrix& form, const float* row, const PackedRows& to) {
  HWY_DYNAMIC_DISPATCH(quantise_row_any)(form, row, to);
}

}  // namespace topkv
#endif
