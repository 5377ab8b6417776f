#include "src/core/math/vector_math.h"

#include <algorithm>
#include <cmath>
#include <limits>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/math/vector_math.cc"
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
#include <hwy/contrib/math/math-inl.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;

/// Its exponential is finite, as Highway's is no longer a little further on; what it divides is as
/// good as 0 there.
constexpr float most_exponent = 88;

/// Calls full(i) for every whole vector and tail(i) for every element after the last one.
template <class Full, class Tail>
HWY_INLINE void each(std::int64_t count, Full full, Tail tail) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Floats()));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) full(i);
  for (; i < count; ++i) tail(i);
}

/// out[i] = of(a[i], b[i]) in vectors. What is left of one is computed in a whole one, so that no
/// result depends on where its element stands: parallel loops divide arrays anywhere.
template <class Of>
HWY_INLINE void map(const float* a, const float* b, std::int64_t count, float* out, Of of) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    hn::StoreU(of(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  if (i == count) return;
  HWY_ALIGN float last_a[hn::MaxLanes(d)] = {};
  HWY_ALIGN float last_b[hn::MaxLanes(d)] = {};
  std::copy(a + i, a + count, last_a);
  std::copy(b + i, b + count, last_b);
  hn::Store(of(hn::Load(d, last_a), hn::Load(d, last_b)), d, last_a);
  std::copy_n(last_a, count - i, out + i);
}

float max_of_any(const float* x, std::int64_t count) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto best = hn::Set(d, -std::numeric_limits<float>::infinity());
  // Four chains, as each maximum waits for the one before it.
  auto second = best;
  auto third = best;
  auto fourth = best;
  std::int64_t at = 0;
  for (; at + 4 * lanes <= count; at += 4 * lanes) {
    best = hn::Max(best, hn::LoadU(d, x + at));
    second = hn::Max(second, hn::LoadU(d, x + at + lanes));
    third = hn::Max(third, hn::LoadU(d, x + at + 2 * lanes));
    fourth = hn::Max(fourth, hn::LoadU(d, x + at + 3 * lanes));
  }
  best = hn::Max(hn::Max(best, second), hn::Max(third, fourth));
  float rest = -std::numeric_limits<float>::infinity();
  each(
      count - at, [&](std::int64_t i) { best = hn::Max(best, hn::LoadU(d, x + at + i)); },
      [&](std::int64_t i) { rest = std::max(rest, x[at + i]); });
  return std::max(rest, hn::GetLane(hn::MaxOfLanes(d, best)));
}

float exp_shifted_any(float* x, std::int64_t count, float shift) {
  const Floats d;
  const auto by = hn::Set(d, shift);
  auto sum = hn::Zero(d);
  float rest = 0;
  each(
      count,
      [&](std::int64_t i) {
        const auto e = hn::Exp(d, hn::Sub(hn::LoadU(d, x + i), by));
        hn::StoreU(e, d, x + i);
        sum = hn::Add(sum, e);
      },
      [&](std::int64_t i) {
        x[i] = std::exp(x[i] - shift);
        rest += x[i];
      });
  return rest + hn::GetLane(hn::SumOfLanes(d, sum));
}

void soft_cap_any(float* x, std::int64_t count, float cap) {
  const Floats d;
  const auto to = hn::Set(d, cap);
  const auto by = hn::Set(d, 1.0F / cap);
  map(x, x, count, x,
      [&](auto v, auto /*same*/) { return hn::Mul(to, hn::Tanh(d, hn::Mul(v, by))); });
}

void scale_by_any(float* x, std::int64_t count, float factor) {
  const Floats d;
  const auto by = hn::Set(d, factor);
  each(
      count, [&](std::int64_t i) { hn::StoreU(hn::Mul(hn::LoadU(d, x + i), by), d, x + i); },
      [&](std::int64_t i) { x[i] *= factor; });
}

void add_scaled_any(float* out, float factor, const float* x, std::int64_t count) {
  const Floats d;
  const auto by = hn::Set(d, factor);
  each(
      count,
      [&](std::int64_t i) {
        hn::StoreU(hn::MulAdd(by, hn::LoadU(d, x + i), hn::LoadU(d, out + i)), d, out + i);
      },
      [&](std::int64_t i) { out[i] += factor * x[i]; });
}

void rms_norm_any(const float* x, const float* weight, std::int64_t count, float epsilon,
                  float* out) {
  const Floats d;
  auto squares = hn::Zero(d);
  float rest = 0;
  each(
      count,
      [&](std::int64_t i) {
        const auto v = hn::LoadU(d, x + i);
        squares = hn::MulAdd(v, v, squares);
      },
      [&](std::int64_t i) { rest += x[i] * x[i]; });
  const float mean = (rest + hn::GetLane(hn::SumOfLanes(d, squares))) / static_cast<float>(count);
  const float factor = 1.0F / std::sqrt(mean + epsilon);
  const auto by = hn::Set(d, factor);
  each(
      count,
      [&](std::int64_t i) {
        hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), by), hn::LoadU(d, weight + i)), d, out + i);
      },
      [&](std::int64_t i) { out[i] = x[i] * factor * weight[i]; });
}

void silu_multiply_any(float* gate, const float* up, std::int64_t count) {
  const Floats d;
  const auto one = hn::Set(d, 1.0F);
  map(gate, up, count, gate, [&](auto g, auto u) {
    const auto bent = hn::Min(hn::Neg(g), hn::Set(d, most_exponent));
    return hn::Mul(hn::Div(g, hn::Add(one, hn::Exp(d, bent))), u);
  });
}

void sigmoid_multiply_any(const float* gate, const float* x, std::int64_t count, float* out) {
  const Floats d;
  const auto one = hn::Set(d, 1.0F);
  map(gate, x, count, out, [&](auto g, auto v) {
    const auto bent = hn::Min(hn::Neg(g), hn::Set(d, most_exponent));
    return hn::Div(v, hn::Add(one, hn::Exp(d, bent)));
  });
}

void clamped_silu_multiply_any(const float* gate, const float* up, float limit, std::int64_t count,
                               float* out) {
  constexpr float alpha = 1.702F;
  const Floats d;
  const auto one = hn::Set(d, 1.0F);
  const auto high = hn::Set(d, limit);
  // Not Min and Max, which may make a number of NaN.
  const auto no_more = [](auto x, auto than) { return hn::IfThenElse(hn::Gt(x, than), than, x); };
  map(gate, up, count, out, [&](auto of_gate, auto of_up) {
    const auto g = no_more(of_gate, high);
    const auto u = hn::Neg(no_more(hn::Neg(no_more(of_up, high)), high));
    const auto bent = hn::Min(hn::Mul(g, hn::Set(d, -alpha)), hn::Set(d, most_exponent));
    const auto gated = hn::Div(g, hn::Add(one, hn::Exp(d, bent)));
    return hn::Mul(gated, hn::Add(u, one));
  });
}

void gelu_multiply_any(float* gate, const float* up, std::int64_t count) {
  constexpr float root = 0.7978845608028654F;  // sqrt(2 / pi)
  constexpr float cubic = 0.044715F;
  const Floats d;
  const auto half = hn::Set(d, 0.5F);
  map(gate, up, count, gate, [&](auto g, auto u) {
    const auto bent = hn::MulAdd(hn::Mul(hn::Set(d, cubic), g), hn::Mul(g, g), g);
    const auto tanh = hn::Tanh(d, hn::Mul(hn::Set(d, root), bent));
    const auto halved = hn::Mul(half, g);
    return hn::Mul(hn::MulAdd(halved, tanh, halved), u);
  });
}

void rotate_pairs_any(float* head, std::int64_t head_dim, const float* cos, const float* sin) {
  const Floats d;
  each(
      head_dim / 2,
      [&](std::int64_t i) {
        const auto c = hn::LoadU(d, cos + i);
        const auto s = hn::LoadU(d, sin + i);
        auto x1 = hn::Zero(d);
        auto x2 = hn::Zero(d);
        hn::LoadInterleaved2(d, head + 2 * i, x1, x2);
        hn::StoreInterleaved2(hn::Sub(hn::Mul(x1, c), hn::Mul(x2, s)),
                              hn::MulAdd(x1, s, hn::Mul(x2, c)), d, head + 2 * i);
      },
      [&](std::int64_t i) {
        const float x1 = head[2 * i];
        const float x2 = head[2 * i + 1];
        head[2 * i] = x1 * cos[i] - x2 * sin[i];
        head[2 * i + 1] = x2 * cos[i] + x1 * sin[i];
      });
}

void rotate_half_any(float* head, std::int64_t head_dim, const float* cos, const float* sin) {
  const Floats d;
  const std::int64_t half = head_dim / 2;
  each(
      half,
      [&](std::int64_t i) {
        const auto c = hn::LoadU(d, cos + i);
        const auto s = hn::LoadU(d, sin + i);
        const auto x1 = hn::LoadU(d, head + i);
        const auto x2 = hn::LoadU(d, head + half + i);
        hn::StoreU(hn::Sub(hn::Mul(x1, c), hn::Mul(x2, s)), d, head + i);
        hn::StoreU(hn::MulAdd(x1, s, hn::Mul(x2, c)), d, head + half + i);
      },
      [&](std::int64_t i) {
        const float x1 = head[i];
        const float x2 = head[half + i];
        head[i] = x1 * cos[i] - x2 * sin[i];
        head[half + i] = x2 * cos[i] + x1 * sin[i];
      });
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(max_of_any);
HWY_EXPORT(exp_shifted_any);
HWY_EXPORT(soft_cap_any);
HWY_EXPORT(scale_by_any);
HWY_EXPORT(add_scaled_any);
HWY_EXPORT(rms_norm_any);
HWY_EXPORT(silu_multiply_any);
HWY_EXPORT(sigmoid_multiply_any);
HWY_EXPORT(gelu_multiply_any);
HWY_EXPORT(clamped_silu_multiply_any);
HWY_EXPORT(rotate_pairs_any);
HWY_EXPORT(rotate_half_any);

float max_of(const float* x, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(max_of_any)(x, count);
}

float exp_shifted(float* x, std::int64_t count, float shift) {
  return HWY_DYNAMIC_DISPATCH(exp_shifted_any)(x, count, shift);
}

void soft_cap(float* x, std::int64_t count, float cap) {
  HWY_DYNAMIC_DISPATCH(soft_cap_any)(x, count, cap);
}

void scale_by(float* x, std::int64_t count, float factor) {
  HWY_DYNAMIC_DISPATCH(scale_by_any)(x, count, factor);
}

void add_scaled(float* out, float factor, const float* x, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(add_scaled_any)(out, factor, x, count);
}

void add_to(float* out, const float* x, std::int64_t count) { add_scaled(out, 1.0F, x, count); }

void rms_norm(const float* x, const float* weight, std::int64_t count, float epsilon, float* out) {
  HWY_DYNAMIC_DISPATCH(rms_norm_any)(x, weight, count, epsilon, out);
}

void gelu_multiply(float* gate, const float* up, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(gelu_multiply_any)(gate, up, count);
}

void rotate_pairs(float* head, std::int64_t head_dim, const float* cos, const float* sin) {
  HWY_DYNAMIC_DISPATCH(rotate_pairs_any)(head, head_dim, cos, sin);
}

void silu_multiply(float* gate, const float* up, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(silu_multiply_any)(gate, up, count);
}

void sigmoid_multiply(const float* gate, const float* x, std::int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(sigmoid_multiply_any)(gate, x, count, out);
}

void clamped_silu_multiply(const float* gate, const float* up, float limit, std::int64_t count,
                           float* out) {
  HWY_DYNAMIC_DISPATCH(clamped_silu_multiply_any)(gate, up, limit, count, out);
}

void rotate_half(float* head, std::int64_t head_dim, const float* cos, const float* sin) {
  HWY_DYNAMIC_DISPATCH(rotate_half_any)(head, head_dim, cos, sin);
}

}  // namespace topkv
#endif
