#include "index/value_codes.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "index/value_scan.cc"
#include <hwy/foreach_target.h>
#include "src/core/simd.h"
// clang-format on

#ifndef TOPKV_VALUE_SCAN_ONCE
#define TOPKV_VALUE_SCAN_ONCE
namespace topkv {

inline constexpr float most_weight = 62.5F;  // what a weight of 1 becomes; 63 with what it carries

/// Which of 16 weights a table entry is made of. Byte 16 q + x of pattern i is for entry x of the
/// table of values 4 q to 4 q + 3: it chooses weight 4 q + i if x has bit i, else none.
struct TablePatterns {
  alignas(64) std::uint8_t of[4][64];
  constexpr TablePatterns() : of() {
    for (unsigned i = 0; i < 4; ++i) {
      for (unsigned b = 0; b < 64; ++b) {
        of[i][b] = static_cast<std::uint8_t>((b & (1U << i)) != 0 ? b / 16 * 4 + i : 0x80);
      }
    }
  }
};
inline constexpr TablePatterns patterns;

}  // namespace topkv
#endif

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

/// Weights as whole numbers up to 63. What rounding leaves of a value is carried to a later one, so
/// that sums over many values are right; lanes begin with different parts of a unit.
HWY_INLINE void round_weights(const float* weights, std::int64_t count, std::uint8_t* out) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, most_weight);
  const auto part = hn::Set(d, 1.0F / static_cast<float>(lanes));
  auto carried = hn::MulAdd(hn::Iota(d, 0.5F), part, hn::Set(d, -0.5F));
  for (std::int64_t i = 0; i < count; i += lanes) {
    const auto exact = hn::MulAdd(hn::LoadU(d, weights + i), factor, carried);
    const auto whole = hn::Max(hn::Round(exact), hn::Zero(d));
    carried = hn::Sub(exact, whole);
    hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(d32, whole)), d8, out + i);
  }
}

#if HWY_TARGET == HWY_SCALAR

/// As below, for processors without shuffles.
void sum_values_any(const std::uint8_t* codes, std::int64_t lanes, const float* weights,
                    std::int64_t count, float factor, float* sums) {
  std::uint8_t whole[value_tile];
  round_weights(weights, count, whole);
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    unsigned low = 0;
    unsigned high = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const unsigned byte = codes[i / 4 * lanes + lane];
      low += (byte >> i % 4 & 1) * whole[i];
      high += (byte >> (4 + i % 4) & 1) * whole[i];
    }
    sums[lane] += factor / most_weight * static_cast<float>(low);
    sums[lanes + lane] += factor / most_weight * static_cast<float>(high);
  }
}

#else

/// tables: for each four values the 16 sums of those of their weights that an entry's bits choose.
HWY_INLINE void make_tables(const std::uint8_t* whole, std::int64_t count, std::uint8_t* tables) {
  const hn::CappedTag<std::uint8_t, 64> d;
  const auto size = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < count; i += 16) {
    const auto weights = hn::LoadDup128(d, whole + i);
    for (std::int64_t b = 0; b < 64; b += size) {
      auto sum = hn::Zero(d);
      for (const auto& pattern : patterns.of) {
        sum = hn::Add(sum, hn::TableLookupBytesOr0(weights, hn::LoadU(d, pattern + b)));
      }
      hn::StoreU(sum, d, tables + i * 4 + b);
    }
  }
}

/// cap: lanes taken at a time.
template <std::size_t cap>
HWY_INLINE void add_tables(const std::uint8_t* codes, std::int64_t lanes,
                           const std::uint8_t* tables, std::int64_t fours, float factor,
                           float* sums) {
  const hn::CappedTag<std::uint8_t, cap> d8;
  const hn::Repartition<std::uint16_t, decltype(d8)> d16;
  const auto size = static_cast<std::int64_t>(hn::Lanes(d8));
  const auto low = hn::Set(d8, std::uint8_t{15});
  for (std::int64_t lane = 0; lane < lanes; lane += size) {
    // Entries are added two at a time as 16 bits, which wrap around; the odd ones once more alone.
    auto low_both = hn::Zero(d16);
    auto low_odd = hn::Zero(d16);
    auto high_both = hn::Zero(d16);
    auto high_odd = hn::Zero(d16);
    for (std::int64_t i = 0; i < fours; ++i) {
      const auto table = hn::LoadDup128(d8, tables + i * 16);
      const auto x = hn::LoadU(d8, codes + i * lanes + lane);
      const auto shifted = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, x)));
      const auto first = hn::BitCast(d16, hn::TableLookupBytes(table, hn::And(x, low)));
      const auto second = hn::BitCast(d16, hn::TableLookupBytes(table, hn::And(shifted, low)));
      low_both = hn::Add(low_both, first);
      low_odd = hn::Add(low_odd, hn::ShiftRight<8>(first));
      high_both = hn::Add(high_both, second);
      high_odd = hn::Add(high_odd, hn::ShiftRight<8>(second));
    }
    const auto add = [&](auto both, auto odd, float* to) HWY_ATTR {
      std::uint16_t even_sums[cap / 2];
      std::uint16_t odd_sums[cap / 2];
      hn::StoreU(hn::Sub(both, hn::ShiftLeft<8>(odd)), d16, even_sums);
      hn::StoreU(odd, d16, odd_sums);
      for (std::int64_t i = 0; i < size / 2; ++i) {
        to[2 * i] += factor / most_weight * static_cast<float>(even_sums[i]);
        to[2 * i + 1] += factor / most_weight * static_cast<float>(odd_sums[i]);
      }
    };
    add(low_both, low_odd, sums + lane);
    add(high_both, high_odd, sums + lanes + lane);
  }
}

void sum_values_any(const std::uint8_t* codes, std::int64_t lanes, const float* weights,
                    std::int64_t count, float factor, float* sums) {
  std::uint8_t whole[value_tile];
  std::uint8_t tables[value_tile * 4];
  round_weights(weights, count, whole);
  make_tables(whole, count, tables);
  if (lanes % 64 == 0) {
    add_tables<64>(codes, lanes, tables, count / 4, factor, sums);
  } else if (lanes % 32 == 0) {
    add_tables<32>(codes, lanes, tables, count / 4, factor, sums);
  } else {
    add_tables<16>(codes, lanes, tables, count / 4, factor, sums);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(sum_values_any);

void sum_values(const std::uint8_t* codes, std::int64_t lanes, const float* weights,
                std::int64_t count, float factor, float* sums) {
  HWY_DYNAMIC_DISPATCH(sum_values_any)(codes, lanes, weights, count, factor, sums);
}

}  // namespace topkv
#endif
