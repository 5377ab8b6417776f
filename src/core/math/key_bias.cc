// Compiled without fused products (CMakeLists.txt): see key_bias.h.
#include "src/core/math/key_bias.h"

#include <cmath>
#include <vector>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/math/key_bias.cc"
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

using Floats = hn::CappedTag<float, 16>;

// gpu/attention/key_bias.cuh has the same numbers.
constexpr double turns_per_radian = 0.15915494309189535;  // 1 / (2 pi)
constexpr float radians_per_turn = 6.2831855F;
// Cephes' sinf and cosf, between -pi/4 and pi/4.
constexpr float sine[3] = {-1.9515295891e-4F, 8.3321608736e-3F, -1.6666654611e-1F};
constexpr float cosine[3] = {2.443315711809948e-5F, -1.388731625493765e-3F, 4.166664568298827e-2F};

/// One element.
float element(const float* bias, std::int64_t dim, std::int64_t i, float position) {
  const float angle = position * bias[2 * dim + i];
  double turns = static_cast<double>(angle) * turns_per_radian;
  turns = turns - std::nearbyint(turns);
  const auto turn = static_cast<float>(turns);
  const float quarter = std::nearbyint(turn * 4);
  const float x = (turn - quarter * 0.25F) * radians_per_turn;
  const float z = x * x;
  const float s = ((sine[0] * z + sine[1]) * z + sine[2]) * z * x + x;
  const float c = ((cosine[0] * z + cosine[1]) * z + cosine[2]) * z * z - z * 0.5F + 1;
  const int k = static_cast<int>(quarter) & 3;
  const float cos = k == 0 ? c : k == 1 ? -s : k == 2 ? -c : s;
  const float sin = k == 0 ? s : k == 1 ? c : k == 2 ? -s : -c;
  return bias[i] * cos + bias[dim + i] * sin;
}

#if HWY_TARGET != HWY_SCALAR

using Vector = hn::Vec<Floats>;

struct Turn {
  Vector cos, sin;
};

/// By the frequencies of as many elements as a vector has.
HWY_INLINE Turn turn_by(Vector frequencies, float position) {
  const Floats d;
  const hn::Half<Floats> half;
  const hn::Rebind<double, hn::Half<Floats>> wide;
  const hn::RebindToSigned<Floats> d32;
  const auto angle = hn::Mul(hn::Set(d, position), frequencies);
  const auto turn_of = [&](auto some) {
    const auto turns = hn::Mul(hn::PromoteTo(wide, some), hn::Set(wide, turns_per_radian));
    return hn::DemoteTo(half, hn::Sub(turns, hn::Round(turns)));
  };
  const auto turn =
      hn::Combine(d, turn_of(hn::UpperHalf(half, angle)), turn_of(hn::LowerHalf(half, angle)));
  const auto quarter = hn::Round(hn::Mul(turn, hn::Set(d, 4.0F)));
  const auto x =
      hn::Mul(hn::Sub(turn, hn::Mul(quarter, hn::Set(d, 0.25F))), hn::Set(d, radians_per_turn));
  const auto z = hn::Mul(x, x);
  const auto polynomial = [&](const float(&of)[3]) {
    auto sum = hn::Add(hn::Mul(hn::Set(d, of[0]), z), hn::Set(d, of[1]));
    return hn::Mul(hn::Add(hn::Mul(sum, z), hn::Set(d, of[2])), z);
  };
  const auto s = hn::Add(hn::Mul(polynomial(sine), x), x);
  const auto c = hn::Add(hn::Sub(hn::Mul(polynomial(cosine), z), hn::Mul(z, hn::Set(d, 0.5F))),
                         hn::Set(d, 1.0F));
  const auto k = hn::ConvertTo(d32, quarter);
  const auto two = hn::Set(d32, 2);
  const auto odd = hn::RebindMask(d, hn::TestBit(k, hn::Set(d32, 1)));
  // Bit 1 of k, or of k + 1, becomes a sign.
  const auto sign = [&](auto of) { return hn::BitCast(d, hn::ShiftLeft<30>(hn::And(of, two))); };
  const auto cos = hn::Xor(hn::IfThenElse(odd, s, c), sign(hn::Add(k, hn::Set(d32, 1))));
  const auto sin = hn::Xor(hn::IfThenElse(odd, c, s), sign(k));
  return {cos, sin};
}

/// Elements i and on.
HWY_INLINE Vector elements(const float* bias, std::int64_t dim, std::int64_t i, const Turn& turn) {
  const Floats d;
  return hn::Add(hn::Mul(hn::LoadU(d, bias + i), turn.cos),
                 hn::Mul(hn::LoadU(d, bias + dim + i), turn.sin));
}

#endif

void turn_any(const float* bias, std::int64_t dim, float position, float* out) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float* const frequencies = bias + 2 * dim;
  const std::int64_t half = dim / 2;
  const auto write = [&](std::int64_t at, const Turn& turn) {
    hn::StoreU(elements(bias, dim, at, turn), d, out + at);
  };
  if (dim % (2 * lanes) == 0) {
    for (; i < half; i += lanes) {
      const auto of_first = hn::LoadU(d, frequencies + i);
      const auto of_second = hn::LoadU(d, frequencies + half + i);
      const Turn turn = turn_by(of_first, position);
      write(i, turn);
      // RoPE turns elements half a head apart together, as a rule.
      const bool same = hn::AllTrue(d, hn::Eq(of_first, of_second));
      write(half + i, same ? turn : turn_by(of_second, position));
    }
    return;
  }
  for (; i + lanes <= dim; i += lanes) write(i, turn_by(hn::LoadU(d, frequencies + i), position));
#endif
  for (; i < dim; ++i) out[i] = element(bias, dim, i, position);
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(turn_any);

void turned_bias(const KeyView& keys, std::int64_t position, float* out) {
  std::int64_t p = keys.first_position + position;
  if (keys.chunk_len > 0) p %= keys.chunk_len;
  HWY_DYNAMIC_DISPATCH(turn_any)(keys.bias, keys.dim, static_cast<float>(p), out);
}

const float* bias_at(const KeyView& keys, std::int64_t position, int slot) {
  if (keys.bias == nullptr) return nullptr;
  thread_local std::vector<float> slots[4];
  std::vector<float>& of = slots[slot];
  if (static_cast<std::int64_t>(of.size()) < keys.dim)
    of.resize(static_cast<std::size_t>(keys.dim));
  turned_bias(keys, position, of.data());
  return of.data();
}

std::int64_t first_bad_bias(const float* bias, std::int64_t heads, std::int64_t dim) {
  for (std::int64_t i = 0; i < heads * 3 * dim; ++i) {
    const float most = i / dim % 3 == 2 ? 0x1p16F : 0x1p96F;
    if (!(std::abs(bias[i]) < most)) return i;
  }
  return -1;
}

}  // namespace topkv
#endif
