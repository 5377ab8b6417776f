#include "src/core/math/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <vector>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/math/gated_delta.cc"
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
#include <hwy/contrib/math/math-inl.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;

/// The first `some` elements from p on, and zeros behind them.
HWY_INLINE hn::Vec<Floats> load_some(const float* p, std::size_t some) {
  const Floats d;
  if (some == hn::Lanes(d)) return hn::LoadU(d, p);
  HWY_ALIGN float few[hn::MaxLanes(d)] = {};
  std::copy_n(p, some, few);
  return hn::Load(d, few);
}

HWY_INLINE void store_some(hn::Vec<Floats> x, float* p, std::size_t some) {
  const Floats d;
  if (some == hn::Lanes(d)) return hn::StoreU(x, d, p);
  HWY_ALIGN float few[hn::MaxLanes(d)];
  hn::Store(x, d, few);
  std::copy_n(few, some, p);
}

void convolve_silu_any(const float* const* rows, const float* weights, const float* bias,
                       std::int64_t kernel, std::int64_t width, float* out) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t c = 0; c < width; c += lanes) {
    const auto some = static_cast<std::size_t>(std::min(lanes, width - c));
    auto sum = bias == nullptr ? hn::Zero(d) : load_some(bias + c, some);
    for (std::int64_t j = 0; j < kernel; ++j)
      sum = hn::MulAdd(load_some(weights + j * width + c, some), load_some(rows[j] + c, some), sum);
    // The exponential is finite up to here, and what it divides is as good as 0 beyond.
    const auto bent = hn::Min(hn::Neg(sum), hn::Set(d, 88.0F));
    store_some(hn::Div(sum, hn::Add(hn::Set(d, 1.0F), hn::Exp(d, bent))), out + c, some);
  }
}

void normalise_any(float* x, std::int64_t count, float epsilon, float factor) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto squares = hn::Zero(d);
  const auto each = [&](auto body) {
    for (std::int64_t i = 0; i < count; i += lanes)
      body(x + i, static_cast<std::size_t>(std::min(lanes, count - i)));
  };
  each([&](float* at, std::size_t some) {
    const auto v = load_some(at, some);
    squares = hn::MulAdd(v, v, squares);
  });
  const auto by = hn::Set(d, factor / std::sqrt(hn::GetLane(hn::SumOfLanes(d, squares)) + epsilon));
  each(
      [&](float* at, std::size_t some) { store_some(hn::Mul(load_some(at, some), by), at, some); });
}

/// Two vectors of columns of S at a time, for each column goes its own way. One pass over S for a
/// token: it writes what the token before left to do, and sums for this one. block: room for
/// key_dim times two vectors, so that S stays in the first-level cache.
HWY_INLINE void delta_columns(const DeltaHead& head, std::int64_t column, const float* from,
                              float* to, float* block) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const auto left = static_cast<std::size_t>(head.value_dim - column);
  const std::size_t some0 = std::min(lanes, left);
  const std::size_t some1 = std::min(lanes, left - some0);
  for (std::int64_t i = 0; i < head.key_dim; ++i) {
    const auto at = static_cast<std::size_t>(i) * 2 * lanes;
    const float* row = from == nullptr ? nullptr : from + i * head.value_dim + column;
    hn::Store(row == nullptr ? hn::Zero(d) : load_some(row, some0), d, block + at);
    hn::Store(row == nullptr ? hn::Zero(d) : load_some(row + some0, some1), d, block + at + lanes);
  }
  auto change0 = hn::Zero(d);  // b (v - a k^T S) of the token before
  auto change1 = hn::Zero(d);
  const float* key_before = head.k;
  float decay_before = 1;
  for (std::int64_t t = 0; t < head.tokens; ++t) {
    const float* q = head.q + t * head.stride;
    const float* k = head.k + t * head.stride;
    const float* v = head.v + t * head.stride + column;
    const float decay = head.decay[t * head.gate_stride];
    const float rate = head.rate[t * head.gate_stride];
    const auto keep = hn::Set(d, decay_before);
    auto seen0 = hn::Zero(d);  // k^T S
    auto seen1 = hn::Zero(d);
    auto out0 = hn::Zero(d);  // q^T S
    auto out1 = hn::Zero(d);
    float both = 0;  // q^T k
    for (std::int64_t i = 0; i < head.key_dim; ++i) {
      float* at = block + static_cast<std::size_t>(i) * 2 * lanes;
      const auto before = hn::Set(d, key_before[i]);
      const auto s0 = hn::MulAdd(before, change0, hn::Mul(keep, hn::Load(d, at)));
      const auto s1 = hn::MulAdd(before, change1, hn::Mul(keep, hn::Load(d, at + lanes)));
      hn::Store(s0, d, at);
      hn::Store(s1, d, at + lanes);
      const auto key = hn::Set(d, k[i]);
      const auto query = hn::Set(d, q[i]);
      seen0 = hn::MulAdd(key, s0, seen0);
      seen1 = hn::MulAdd(key, s1, seen1);
      out0 = hn::MulAdd(query, s0, out0);
      out1 = hn::MulAdd(query, s1, out1);
      both += q[i] * k[i];
    }
    const auto by = hn::Set(d, decay);
    const auto off = hn::Set(d, head.corrects ? decay : 0.0F);
    const auto times = hn::Set(d, rate);
    change0 = hn::Mul(times, hn::NegMulAdd(off, seen0, load_some(v, some0)));
    change1 = hn::Mul(times, hn::NegMulAdd(off, seen1, load_some(v + some0, some1)));
    const auto along = hn::Set(d, both);
    float* out = head.out + t * head.out_stride + column;
    store_some(hn::MulAdd(along, change0, hn::Mul(by, out0)), out, some0);
    store_some(hn::MulAdd(along, change1, hn::Mul(by, out1)), out + some0, some1);
    key_before = k;
    decay_before = decay;
  }
  const auto keep = hn::Set(d, decay_before);
  for (std::int64_t i = 0; i < head.key_dim; ++i) {
    const float* at = block + static_cast<std::size_t>(i) * 2 * lanes;
    const auto before = hn::Set(d, key_before[i]);
    float* row = to + i * head.value_dim + column;
    store_some(hn::MulAdd(before, change0, hn::Mul(keep, hn::Load(d, at))), row, some0);
    store_some(hn::MulAdd(before, change1, hn::Mul(keep, hn::Load(d, at + lanes))), row + some0,
               some1);
  }
}

void delta_rule_any(const DeltaHead& head, const float* from, float* to) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  thread_local std::vector<float> room;
  constexpr std::size_t alignment = 64;
  room.resize(static_cast<std::size_t>(2 * head.key_dim * lanes) + alignment / sizeof(float));
  const std::size_t beyond = reinterpret_cast<std::uintptr_t>(room.data()) % alignment;
  float* const block = room.data() + (beyond == 0 ? 0 : (alignment - beyond) / sizeof(float));
  for (std::int64_t column = 0; column < head.value_dim; column += 2 * lanes)
    delta_columns(head, column, from, to, block);
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(convolve_silu_any);
HWY_EXPORT(normalise_any);
HWY_EXPORT(delta_rule_any);

void convolve_silu(const float* const* rows, const float* weights, const float* bias,
                   std::int64_t kernel, std::int64_t width, float* out) {
  HWY_DYNAMIC_DISPATCH(convolve_silu_any)(rows, weights, bias, kernel, width, out);
}

void normalise(float* x, std::int64_t count, float epsilon, float factor) {
  HWY_DYNAMIC_DISPATCH(normalise_any)(x, count, epsilon, factor);
}

void delta_rule(const DeltaHead& head, const float* from, float* to) {
  HWY_DYNAMIC_DISPATCH(delta_rule_any)(head, from, to);
}

}  // namespace topkv
#endif
