#include <bit>

#include "index/codes/value_codes.h"

// Processors with AVX-512 VNNI multiply and add bytes in one instruction. (Without optimisation
// Highway's dispatch is a function that files would share, and must see the same targets in all.)
#ifdef __OPTIMIZE__
#define HWY_WANT_AVX3_DL
#endif
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "index/codes/value_code_pass.cc"
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
// clang-format on

#ifndef TOPKV_VALUE_CODE_PASS_ONCE
#define TOPKV_VALUE_CODE_PASS_ONCE
namespace topkv {

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

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
constexpr float most_weight = 254.5F;  // what the largest becomes; 255 with what it carries
#else
constexpr float most_weight = 62.5F;  // so that four fit into 8 bits
#endif

/// Added to a number below 2^22, and taken away again, leaves it rounded to a whole one, ties to
/// even, which the lower bits of the sum tell.
constexpr float rounder = 0x1.8p23F;

/// 2^x of x <= 0, off by at most 5e-7 of it; 2^0 is 1. (The polynomial of degree 5 with the least
/// largest error among those that are 1 at 0, by Remez's algorithm.)
template <class D>
HWY_INLINE hn::Vec<D> power_of_2(D d, hn::Vec<D> x) {
  x = hn::Max(x, hn::Set(d, -126.0F));
  const auto shifted = hn::Add(x, hn::Set(d, rounder));
  const auto rounded = hn::Sub(shifted, hn::Set(d, rounder));
  const auto part = hn::Sub(x, rounded);
  auto y = hn::Set(d, 1.112550926e-3F);
#pragma GCC unroll 5
  for (const float c : {9.666282547e-3F, 5.557400469e-2F, 2.402235065e-1F, 6.931428306e-1F, 1.0F})
    y = hn::MulAdd(y, part, hn::Set(d, c));
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  return hn::Vec<D>{_mm512_scalef_ps(y.raw, rounded.raw)};
#else
  const hn::RebindToUnsigned<D> d32;
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(d32, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(d32, y), exponent));
#endif
}

/// Of each number of four vectors the lowest 8 bits, as many bytes as there are numbers.
template <class V>
HWY_INLINE void store_lowest(const V (&numbers)[4], std::uint8_t* to) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  for (std::int64_t c = 0; c < 4; ++c)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + c, _mm512_cvtepi32_epi8(numbers[c].raw));
#else
  const hn::DFromV<V> d32;
  const auto low = hn::Set(d32, 255);
#if HWY_TARGET == HWY_AVX2
  const auto pack = [&](V a, V b) HWY_ATTR {
    return _mm256_packs_epi32(hn::And(a, low).raw, hn::And(b, low).raw);
  };
  // Four numbers of each vector, then the upper four of each.
  const __m256i bytes =
      _mm256_packus_epi16(pack(numbers[0], numbers[1]), pack(numbers[2], numbers[3]));
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(bytes, in_order));
#else
  const hn::Rebind<std::uint8_t, decltype(d32)> d8;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d32));
  for (std::int64_t c = 0; c < 4; ++c)
    hn::StoreU(hn::DemoteTo(d8, hn::And(numbers[c], low)), d8, to + c * lanes);
#endif
#endif
}

using Floats = hn::CappedTag<float, value_block / 4>;

void weigh_scores_any(const float* scores, std::int64_t count, float high, float* weights,
                      WeightSums* sums) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto log2_of_e = hn::Set(d, 1.44269504088896341F);
  const auto most = hn::Set(d, high);
  for (std::int64_t begin = 0; begin < count; begin += value_block) {
    hn::Vec<Floats> total[2] = {hn::Zero(d), hn::Zero(d)};
    hn::Vec<Floats> squares[2] = {hn::Zero(d), hn::Zero(d)};
    for (std::int64_t i = begin; i < begin + value_block; i += 2 * lanes) {
#pragma GCC unroll 2
      for (std::int64_t c = 0; c < 2; ++c) {
        const auto below = hn::Sub(hn::LoadU(d, scores + i + c * lanes), most);
        const auto weight = power_of_2(d, hn::Mul(below, log2_of_e));
        total[c] = hn::Add(total[c], weight);
        squares[c] = hn::MulAdd(weight, weight, squares[c]);
        hn::StoreU(weight, d, weights + i + c * lanes);
      }
    }
    sums[begin / value_block] = {hn::GetLane(hn::SumOfLanes(d, hn::Add(total[0], total[1]))),
                                 hn::GetLane(hn::SumOfLanes(d, hn::Add(squares[0], squares[1])))};
  }
}

/// Lanes begin to round with different parts of a unit.
RoundedWeights round_weights_any(const float* weights, std::uint32_t blocks, const float* factors,
                                 float largest, std::uint8_t* out) {
  constexpr std::int64_t chains = 4;  // vectors, each with what is carried to it
  const Floats d;
  const hn::RebindToSigned<Floats> d32;
  const hn::CappedTag<std::uint8_t, value_block> d8;
  const hn::Repartition<std::uint64_t, decltype(d8)> d64;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto bytes = static_cast<std::int64_t>(hn::Lanes(d8));
  const auto part = hn::Set(d, 1.0F / static_cast<float>(chains * lanes));
  const auto round_by = hn::Set(d, rounder);
  hn::Vec<Floats> carried[chains];
#pragma GCC unroll 4
  for (std::int64_t c = 0; c < chains; ++c) {
    const auto number = hn::Iota(d, static_cast<float>(c * lanes) + 0.5F);
    carried[c] = hn::MulAdd(number, part, hn::Set(d, -0.5F));
  }
  const float unit = largest / most_weight;
  auto sum = hn::Zero(d64);
  for (; blocks != 0; blocks &= blocks - 1, out += value_block) {
    const std::int64_t block = std::countr_zero(blocks);
    const float* of_block = weights + block * value_block;
    const auto factor = hn::Set(d, factors[block] / unit);
    for (std::int64_t i = 0; i < value_block; i += chains * lanes) {
      hn::Vec<decltype(d32)> whole[chains];
#pragma GCC unroll 4
      for (std::int64_t c = 0; c < chains; ++c) {
        const auto exact = hn::MulAdd(hn::LoadU(d, of_block + i + c * lanes), factor, carried[c]);
        const auto rounded = hn::Add(exact, round_by);
        carried[c] = hn::Sub(exact, hn::Sub(rounded, round_by));
        whole[c] = hn::BitCast(d32, rounded);
      }
      store_lowest(whole, out + i);
    }
    for (std::int64_t i = 0; i < value_block; i += bytes)
      sum = hn::Add(sum, hn::SumsOf8(hn::LoadU(d8, out + i)));
  }
  return {unit, unit * static_cast<float>(hn::GetLane(hn::SumOfLanes(d64, sum)))};
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL

/// Of a block, for 8 * chunks lanes. A mask of 64 bits says of 16 axes which of 4 values have their
/// bit: lane by lane the axis of the lower nibble, then that of the upper.
template <std::int64_t count, std::int64_t chunks>
HWY_INLINE void sum_chunks(const std::uint8_t* codes, std::int64_t lanes, std::int64_t lane,
                           const WeightedTile* const* queries, const std::uint8_t* const* weights) {
  const hn::CappedTag<std::int32_t, 16> d32;
  const hn::RebindToFloat<decltype(d32)> d;
  Sums16 negative[count][chunks];
  for (auto& of_query : negative) {
    for (auto& sum : of_query) sum = hn::Zero(d32);
  }
  for (std::int64_t i = 0; i < value_block / 4; ++i) {
    __m512i has_bit[chunks];  // -1 or 0 for each value
    for (std::int64_t c = 0; c < chunks; ++c) {
      std::uint64_t mask = 0;
      std::memcpy(&mask, codes + i * lanes + lane + 8 * c, sizeof mask);
      has_bit[c] = _mm512_movm_epi8(mask);
    }
    for (std::int64_t q = 0; q < count; ++q) {
      std::int32_t four = 0;
      std::memcpy(&four, weights[q] + 4 * i, sizeof four);
      const auto of_four = hn::Set(d32, four);
      for (std::int64_t c = 0; c < chunks; ++c)
        negative[q][c] = add_products_of_4(negative[q][c], of_four.raw, has_bit[c]);
    }
  }
  for (std::int64_t q = 0; q < count; ++q) {
    const auto unit = hn::Set(d, -queries[q]->unit);
    for (std::int64_t c = 0; c < chunks; ++c) {
      float* sums = queries[q]->sums + 2 * (lane + 8 * c);
      const auto sum = hn::ConvertTo(d, negative[q][c]);
      hn::StoreU(hn::MulAdd(sum, unit, hn::LoadU(d, sums)), d, sums);
    }
  }
}

template <std::int64_t count>
HWY_INLINE void sum_block(const std::uint8_t* codes, std::int64_t lanes,
                          const WeightedTile* const* queries, const std::uint8_t* const* weights) {
  std::int64_t lane = 0;
  for (; lane + 32 <= lanes; lane += 32) sum_chunks<count, 4>(codes, lanes, lane, queries, weights);
  for (; lane < lanes; lane += 16) sum_chunks<count, 2>(codes, lanes, lane, queries, weights);
}

void sum_values_any(const std::uint8_t* codes, std::int64_t lanes,
                    std::span<const WeightedTile> queries) {
  constexpr std::size_t at_once = 4;  // queries, as registers hold sums
  std::uint32_t any = 0;
  for (const WeightedTile& query : queries) any |= query.blocks;
  for (; any != 0; any &= any - 1) {
    const std::uint32_t bit = any & (0 - any);
    const std::uint8_t* block = codes + std::countr_zero(any) * (value_block / 4) * lanes;
    for (std::size_t q = 0; q < queries.size();) {
      const WeightedTile* some[at_once];
      const std::uint8_t* weights[at_once];
      std::size_t count = 0;
      for (; q < queries.size() && count < at_once; ++q) {
        if ((queries[q].blocks & bit) == 0) continue;
        some[count] = &queries[q];
        weights[count++] =
            queries[q].weights + std::popcount(queries[q].blocks & (bit - 1)) * value_block;
      }
      if (count == 1) sum_block<1>(block, lanes, some, weights);
      if (count == 2) sum_block<2>(block, lanes, some, weights);
      if (count == 3) sum_block<3>(block, lanes, some, weights);
      if (count == 4) sum_block<4>(block, lanes, some, weights);
    }
  }
}

#else
#if HWY_TARGET == HWY_SCALAR

/// As below, for processors without shuffles.
void sum_one(const std::uint8_t* codes, std::int64_t lanes, const WeightedTile& query) {
  const std::uint8_t* weights = query.weights;
  for (std::uint32_t blocks = query.blocks; blocks != 0; blocks &= blocks - 1) {
    const std::uint8_t* block = codes + std::countr_zero(blocks) * (value_block / 4) * lanes;
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      unsigned low = 0;
      unsigned high = 0;
      for (std::int64_t i = 0; i < value_block; ++i) {
        const unsigned byte = block[i / 4 * lanes + lane];
        low += (byte >> i % 4 & 1) * weights[i];
        high += (byte >> (4 + i % 4) & 1) * weights[i];
      }
      query.sums[2 * lane] += query.unit * static_cast<float>(low);
      query.sums[2 * lane + 1] += query.unit * static_cast<float>(high);
    }
    weights += value_block;
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
#pragma GCC unroll 4
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
                           const std::uint8_t* tables, const WeightedTile& query) {
  const hn::CappedTag<std::uint8_t, cap> d8;
  const hn::Repartition<std::uint16_t, decltype(d8)> d16;
  const hn::Repartition<std::int32_t, decltype(d8)> d32;
  const hn::Repartition<float, decltype(d8)> d;
  const hn::Rebind<std::uint16_t, decltype(d)> part16;
  const auto size = static_cast<std::int64_t>(hn::Lanes(d8));
  const auto floats = static_cast<std::int64_t>(hn::Lanes(d));
  const auto low = hn::Set(d8, std::uint8_t{15});
  const auto unit = hn::Set(d, query.unit);
  for (std::int64_t lane = 0; lane < lanes; lane += size) {
    // Entries are added two at a time as 16 bits, which wrap around; the odd ones once more alone.
    auto low_both = hn::Zero(d16);
    auto low_odd = hn::Zero(d16);
    auto high_both = hn::Zero(d16);
    auto high_odd = hn::Zero(d16);
    const std::uint8_t* table = tables;
    for (std::uint32_t blocks = query.blocks; blocks != 0; blocks &= blocks - 1) {
      const std::uint8_t* from =
          codes + std::countr_zero(blocks) * (value_block / 4) * lanes + lane;
      for (std::int64_t i = 0; i < value_block / 4; ++i, from += lanes, table += 16) {
        const auto entries = hn::LoadDup128(d8, table);
        const auto x = hn::LoadU(d8, from);
        const auto shifted = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, x)));
        const auto first = hn::BitCast(d16, hn::TableLookupBytes(entries, hn::And(x, low)));
        const auto second = hn::BitCast(d16, hn::TableLookupBytes(entries, hn::And(shifted, low)));
        low_both = hn::Add(low_both, first);
        low_odd = hn::Add(low_odd, hn::ShiftRight<8>(first));
        high_both = hn::Add(high_both, second);
        high_odd = hn::Add(high_odd, hn::ShiftRight<8>(second));
      }
    }
    std::uint16_t whole[2 * cap];
    hn::StoreInterleaved4(hn::Sub(low_both, hn::ShiftLeft<8>(low_odd)),
                          hn::Sub(high_both, hn::ShiftLeft<8>(high_odd)), low_odd, high_odd, d16,
                          whole);
    float* sums = query.sums + 2 * lane;
    for (std::int64_t i = 0; i < 2 * size; i += floats) {
      const auto sum = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(part16, whole + i)));
      hn::StoreU(hn::MulAdd(sum, unit, hn::LoadU(d, sums + i)), d, sums + i);
    }
  }
}

void sum_one(const std::uint8_t* codes, std::int64_t lanes, const WeightedTile& query) {
  std::uint8_t tables[value_tile * 4];
  make_tables(query.weights, std::popcount(query.blocks) * value_block, tables);
  if (lanes % 64 == 0) {
    add_tables<64>(codes, lanes, tables, query);
  } else if (lanes % 32 == 0) {
    add_tables<32>(codes, lanes, tables, query);
  } else {
    add_tables<16>(codes, lanes, tables, query);
  }
}

#endif

void sum_values_any(const std::uint8_t* codes, std::int64_t lanes,
                    std::span<const WeightedTile> queries) {
  for (const WeightedTile& query : queries) sum_one(codes, lanes, query);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(weigh_scores_any);
HWY_EXPORT(round_weights_any);
HWY_EXPORT(sum_values_any);

void weigh_scores(const float* scores, std::int64_t count, float high, float* weights,
                  WeightSums* sums) {
  HWY_DYNAMIC_DISPATCH(weigh_scores_any)(scores, count, high, weights, sums);
}

RoundedWeights round_weights(const float* weights, std::uint32_t blocks, const float* factors,
                             float largest, std::uint8_t* out) {
  return HWY_DYNAMIC_DISPATCH(round_weights_any)(weights, blocks, factors, largest, out);
}

void sum_values(const std::uint8_t* codes, std::int64_t lanes,
                std::span<const WeightedTile> queries) {
  HWY_DYNAMIC_DISPATCH(sum_values_any)(codes, lanes, queries);
}

}  // namespace topkv
#endif
