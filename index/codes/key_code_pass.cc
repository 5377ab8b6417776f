#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "index/codes/key_codes.h"

// Processors with AVX-512 VNNI multiply and add bytes in one instruction. (Without optimisation
// Highway's dispatch is a function that files would share, and must see the same targets in all.)
#ifdef __OPTIMIZE__
#define HWY_WANT_AVX3_DL
#endif
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "index/codes/key_code_pass.cc"
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

constexpr std::int64_t blocks_of(std::int64_t keys) { return (keys + code_block - 1) / code_block; }

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL

using Bytes = hn::CappedTag<std::uint8_t, code_block>;
using Pairs = hn::Repartition<std::uint16_t, Bytes>;
using Sums = hn::Repartition<std::int32_t, Bytes>;
using Floats = hn::Repartition<float, Bytes>;

constexpr std::int64_t quarters = 4;         // vectors of sums for the keys of a block
constexpr std::int64_t queries_at_once = 4;  // as registers hold sums

void make_tables_any(const float* /*slots*/, std::int64_t /*bytes*/, SlotWeights& /*weights*/) {}

/// Scores of the keys of a block, and the largest. v[j] has four of them in each 128 bits: keys
/// 16 i + 4 j and on in part i.
HWY_INLINE float store_in_order(const hn::Vec<Floats> (&v)[quarters], float* to) {
  const Floats d;
  const __m512 even01 = _mm512_shuffle_f32x4(v[0].raw, v[1].raw, 0x88);
  const __m512 odd01 = _mm512_shuffle_f32x4(v[0].raw, v[1].raw, 0xDD);
  const __m512 even23 = _mm512_shuffle_f32x4(v[2].raw, v[3].raw, 0x88);
  const __m512 odd23 = _mm512_shuffle_f32x4(v[2].raw, v[3].raw, 0xDD);
  hn::StoreU(hn::Vec<Floats>{_mm512_shuffle_f32x4(even01, even23, 0x88)}, d, to);
  hn::StoreU(hn::Vec<Floats>{_mm512_shuffle_f32x4(odd01, odd23, 0x88)}, d, to + 16);
  hn::StoreU(hn::Vec<Floats>{_mm512_shuffle_f32x4(even01, even23, 0xDD)}, d, to + 32);
  hn::StoreU(hn::Vec<Floats>{_mm512_shuffle_f32x4(odd01, odd23, 0xDD)}, d, to + 48);
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(v[0], v[1]), hn::Max(v[2], v[3]))));
}

template <std::int64_t count>
HWY_INLINE void score_block(const std::uint8_t* block, std::int64_t bytes,
                            const SlotWeights* queries, float* scores, std::int64_t stride,
                            float* highs, std::int64_t ahead) {
  const Bytes d8;
  const Pairs d16;
  const Sums d32;
  const Floats d;
  const auto low = hn::Set(d8, std::uint8_t{3});
  hn::Vec<Sums> sums[count][quarters];
  for (auto& of_query : sums) {
    for (auto& of_quarter : of_query) of_quarter = hn::Zero(d32);
  }
  for (std::int64_t g = 0; g < (bytes + 3) / 4; ++g) {
    const auto plane = [&](std::int64_t b) HWY_ATTR {
      // Into the cache of the second level: other work comes before the line is read.
      __builtin_prefetch(block + (4 * g + b) * code_block + ahead, 0, 2);
      return 4 * g + b < bytes ? hn::LoadU(d8, block + (4 * g + b) * code_block) : hn::Zero(d8);
    };
    const auto p0 = plane(0);
    const auto p1 = plane(1);
    const auto p2 = plane(2);
    const auto p3 = plane(3);
    // The four bytes of a key side by side.
    const auto lower01 = hn::BitCast(d16, hn::InterleaveLower(d8, p0, p1));
    const auto upper01 = hn::BitCast(d16, hn::InterleaveUpper(d8, p0, p1));
    const auto lower23 = hn::BitCast(d16, hn::InterleaveLower(d8, p2, p3));
    const auto upper23 = hn::BitCast(d16, hn::InterleaveUpper(d8, p2, p3));
    const hn::Vec<Pairs> codes[quarters] = {
        hn::InterleaveLower(d16, lower01, lower23), hn::InterleaveUpper(d16, lower01, lower23),
        hn::InterleaveLower(d16, upper01, upper23), hn::InterleaveUpper(d16, upper01, upper23)};
    const auto add_field = [&](auto shift) HWY_ATTR {
      constexpr int field = decltype(shift)::value;
      hn::Vec<Bytes> values[quarters];
      for (std::int64_t j = 0; j < quarters; ++j)
        values[j] = hn::And(hn::BitCast(d8, hn::ShiftRight<2 * field>(codes[j])), low);
      for (std::int64_t q = 0; q < count; ++q) {
        std::int32_t four = 0;
        std::memcpy(&four, queries[q].coefficients.data() + (g * 4 + field) * 4, sizeof four);
        const auto coefficients = hn::Set(d32, four);
        for (std::int64_t j = 0; j < quarters; ++j)
          sums[q][j] = add_products_of_4(sums[q][j], values[j].raw, coefficients.raw);
      }
    };
    add_field(std::integral_constant<int, 0>());
    add_field(std::integral_constant<int, 1>());
    add_field(std::integral_constant<int, 2>());
    add_field(std::integral_constant<int, 3>());
  }
  for (std::int64_t q = 0; q < count; ++q) {
    const auto step = hn::Set(d, queries[q].step);
    const auto offset = hn::Set(d, queries[q].offset);
    hn::Vec<Floats> of_query[quarters];
    for (std::int64_t j = 0; j < quarters; ++j)
      of_query[j] = hn::MulAdd(hn::ConvertTo(d, sums[q][j]), step, offset);
    highs[q * blocks_of(stride)] = store_in_order(of_query, scores + q * stride);
  }
}

#else

constexpr std::int64_t queries_at_once = 4;  // as registers hold sums

/// Entries of one half of a byte: of slots worth `first` and `second` for each step.
struct HalfTable {
  float first, second;
  float least() const { return 3 * (std::min(first, 0.0F) + std::min(second, 0.0F)); }
  float most() const { return 3 * (std::max(first, 0.0F) + std::max(second, 0.0F)); }
};

void make_tables_any(const float* slots, std::int64_t bytes, SlotWeights& weights) {
  const auto half = [&](std::int64_t i) { return HalfTable{slots[2 * i], slots[2 * i + 1]}; };
  const auto range_of = [&](std::int64_t b) {
    const HalfTable low = half(2 * b);
    const HalfTable high = half(2 * b + 1);
    return low.most() - low.least() + high.most() - high.least();
  };
  float range = 0;  // of two bytes that are added up in 8 bits
  for (std::int64_t b = 0; b < (bytes + 1) / 2; ++b) {
    const std::int64_t other = bytes - 1 - b;
    range = std::max(range, range_of(b) + (other == b ? 0.0F : range_of(other)));
  }
  const float step = range / 253;  // so that four entries, rounded up, still fit into 8 bits
  weights.tables.resize(static_cast<std::size_t>(32 * bytes));
  weights.table_step = step;
  weights.table_offset = 0;
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<std::int32_t, decltype(d)> d32;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto steps = hn::Set(d, step > 0 ? step : 1);
  alignas(64) float first_slot[16], second_slot[16];  // of an entry
  for (int x = 0; x < 16; ++x) {
    first_slot[x] = static_cast<float>(x % 4);
    second_slot[x] = static_cast<float>(x / 4);
  }
  for (std::int64_t i = 0; i < 2 * bytes; ++i) {
    const HalfTable of = half(i);
    const auto least = hn::Set(d, of.least());
    auto left = hn::Zero(d);
    for (std::int64_t x = 0; x < 16; x += lanes) {
      const auto second = hn::Mul(hn::LoadU(d, second_slot + x), hn::Set(d, of.second));
      const auto worth = hn::MulAdd(hn::LoadU(d, first_slot + x), hn::Set(d, of.first), second);
      const auto above = hn::Max(hn::Sub(worth, least), hn::Zero(d));
      const auto entry = hn::ConvertTo(d32, hn::Add(hn::Div(above, steps), hn::Set(d, 0.5F)));
      hn::StoreU(hn::DemoteTo(d8, entry), d8,
                 &weights.tables[static_cast<std::size_t>(16 * i + x)]);
      left = hn::Add(left, hn::NegMulAdd(hn::ConvertTo(d, entry), steps, above));
    }
    // What rounding leaves on average is added for all.
    weights.table_offset += of.least() + hn::GetLane(hn::SumOfLanes(d, left)) / 16;
  }
}

#if HWY_TARGET == HWY_SCALAR

template <std::int64_t count>
void score_block(const std::uint8_t* block, std::int64_t bytes, const SlotWeights* queries,
                 float* scores, std::int64_t stride, float* highs, std::int64_t /*ahead*/) {
  for (std::int64_t q = 0; q < count; ++q) {
    float* to = scores + q * stride;
    for (std::int64_t i = 0; i < code_block; ++i) {
      unsigned sum = 0;
      for (std::int64_t b = 0; b < bytes; ++b) {
        const std::uint8_t* table = queries[q].tables.data() + 32 * b;
        const unsigned code = block[b * code_block + i];
        sum += table[code & 15];
        sum += table[16 + (code >> 4)];
      }
      to[i] = static_cast<float>(sum) * queries[q].table_step + queries[q].table_offset;
    }
    highs[q * blocks_of(stride)] = *std::max_element(to, to + code_block);
  }
}

#else

template <std::int64_t count>
HWY_INLINE void score_block(const std::uint8_t* block, std::int64_t bytes,
                            const SlotWeights* queries, float* scores, std::int64_t stride,
                            float* highs, std::int64_t ahead) {
  const hn::CappedTag<std::uint8_t, code_block> d8;
  const hn::Repartition<std::uint16_t, decltype(d8)> d16;
  const hn::Repartition<std::int32_t, decltype(d8)> d32;
  const hn::Repartition<float, decltype(d8)> d;
  const hn::Rebind<std::uint16_t, decltype(d)> half16;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d8));
  const auto floats = static_cast<std::int64_t>(hn::Lanes(d));
  const auto low = hn::Set(d8, std::uint8_t{15});
  for (std::int64_t b = 0; b < bytes; ++b) __builtin_prefetch(block + b * code_block + ahead, 0, 2);
  alignas(64) std::uint16_t whole[count][code_block];
  const std::uint8_t* tables[count];
  for (std::int64_t q = 0; q < count; ++q) tables[q] = queries[q].tables.data();
  for (std::int64_t first = 0; first < code_block; first += lanes) {
    // Sums of 8 bits are added up two at a time as 16 bits, which wrap around; the odd ones once
    // more alone. Loops over queries are unrolled so that their sums stay in registers.
    hn::Vec<decltype(d16)> both[count];
    hn::Vec<decltype(d16)> odd[count];
#pragma GCC unroll 4
    for (std::int64_t q = 0; q < count; ++q) both[q] = odd[q] = hn::Zero(d16);
    const auto codes_of = [&](std::int64_t b)
                              HWY_ATTR { return hn::LoadU(d8, block + b * code_block + first); };
    const auto entries = [&](std::int64_t q, std::int64_t half, auto of) HWY_ATTR {
      return hn::TableLookupBytes(hn::LoadDup128(d8, tables[q] + 16 * half), of);
    };
    const auto add = [&](std::int64_t q, auto sum8) HWY_ATTR {
      const auto sum = hn::BitCast(d16, sum8);
      both[q] = hn::Add(both[q], sum);
      odd[q] = hn::Add(odd[q], hn::ShiftRight<8>(sum));
    };
    for (std::int64_t b = 0; b < bytes / 2; ++b) {
      const std::int64_t c = bytes - 1 - b;
      const auto one = codes_of(b);
      const auto other = codes_of(c);
      const auto one_low = hn::And(one, low);
      const auto one_high = hn::ShiftRight<4>(one);
      const auto other_low = hn::And(other, low);
      const auto other_high = hn::ShiftRight<4>(other);
#pragma GCC unroll 4
      for (std::int64_t q = 0; q < count; ++q) {
        const auto sum = hn::Add(entries(q, 2 * b, one_low), entries(q, 2 * b + 1, one_high));
        add(q,
            hn::Add(hn::Add(sum, entries(q, 2 * c, other_low)), entries(q, 2 * c + 1, other_high)));
      }
    }
    if (bytes % 2 != 0) {
      const auto middle = codes_of(bytes / 2);
#pragma GCC unroll 4
      for (std::int64_t q = 0; q < count; ++q) {
        add(q, hn::Add(entries(q, bytes - 1, hn::And(middle, low)),
                       entries(q, bytes, hn::ShiftRight<4>(middle))));
      }
    }
#pragma GCC unroll 4
    for (std::int64_t q = 0; q < count; ++q) {
      const auto even = hn::Sub(both[q], hn::ShiftLeft<8>(odd[q]));
      hn::StoreInterleaved2(even, odd[q], d16, whole[q] + first);
    }
  }
  for (std::int64_t q = 0; q < count; ++q) {
    const auto step = hn::Set(d, queries[q].table_step);
    const auto offset = hn::Set(d, queries[q].table_offset);
    auto high = hn::Set(d, std::numeric_limits<float>::lowest());
#pragma GCC unroll 4
    for (std::int64_t i = 0; i < code_block; i += floats) {
      const auto sum = hn::PromoteTo(d32, hn::LoadU(half16, whole[q] + i));
      const auto score = hn::MulAdd(hn::ConvertTo(d, sum), step, offset);
      high = hn::Max(high, score);
      hn::StoreU(score, d, scores + q * stride + i);
    }
    highs[q * blocks_of(stride)] = hn::GetLane(hn::MaxOfLanes(d, high));
  }
}

#endif
#endif

template <std::int64_t some>
void score_blocks(const std::uint8_t* codes, std::int64_t bytes, const SlotWeights* queries,
                  std::int64_t count, float* scores, std::int64_t stride, float* highs,
                  std::int64_t ahead) {
  for (std::int64_t at = 0; at < count; at += code_block) {
    score_block<some>(codes + at * bytes, bytes, queries, scores + at, stride,
                      highs + at / code_block, ahead);
  }
}

/// Of whole blocks, few enough to be still near when the next queries read them.
void score_queries(const std::uint8_t* codes, std::int64_t bytes,
                   std::span<const SlotWeights> queries, std::int64_t count, float* scores,
                   std::int64_t stride, float* highs, std::int64_t ahead) {
  const std::int64_t all = std::ssize(queries);
  for (std::int64_t q = 0; q < all;) {
    const auto score = [&](auto some) {
      score_blocks<decltype(some)::value>(codes, bytes, &queries[static_cast<std::size_t>(q)],
                                          count, scores + q * stride, stride,
                                          highs + q * blocks_of(stride), ahead);
    };
    const std::int64_t some = std::min(all - q, queries_at_once);
    if (some == 4) score(std::integral_constant<std::int64_t, 4>());
    if (some == 3) score(std::integral_constant<std::int64_t, 3>());
    if (some == 2) score(std::integral_constant<std::int64_t, 2>());
    if (some == 1) score(std::integral_constant<std::int64_t, 1>());
    q += some;
  }
}

void score_codes_any(const std::uint8_t* codes, std::int64_t bytes,
                     std::span<const SlotWeights> queries, std::int64_t count, float* scores,
                     std::int64_t stride, float* highs, std::int64_t ahead) {
  constexpr std::int64_t keys_at_once = 4 * code_block;
  const std::int64_t whole = count / code_block * code_block;
  for (std::int64_t at = 0; at < whole; at += keys_at_once) {
    score_queries(codes + at * bytes, bytes, queries, std::min(keys_at_once, whole - at),
                  scores + at, stride, highs + at / code_block, ahead);
  }
  if (whole == count) return;
  float last[code_block];
  for (std::int64_t q = 0; q < std::ssize(queries); ++q) {
    float* high = highs + q * blocks_of(stride) + whole / code_block;
    score_queries(codes + whole * bytes, bytes, queries.subspan(static_cast<std::size_t>(q), 1),
                  code_block, last, code_block, high, ahead);
    std::copy_n(last, count - whole, scores + q * stride + whole);
    *high = *std::max_element(last, last + (count - whole));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(make_tables_any);
HWY_EXPORT(score_codes_any);

void make_tables(const float* slots, std::int64_t bytes, SlotWeights& weights) {
  HWY_DYNAMIC_DISPATCH(make_tables_any)(slots, bytes, weights);
}

void score_codes(const std::uint8_t* codes, std::int64_t bytes,
                 std::span<const SlotWeights> queries, std::int64_t first, std::int64_t count,
                 float* scores, std::int64_t stride, float* highs, std::int64_t ahead) {
  HWY_DYNAMIC_DISPATCH(score_codes_any)
  (codes + first * bytes, bytes, queries, count, scores, stride, highs, ahead * bytes);
}

}  // namespace topkv
#endif
