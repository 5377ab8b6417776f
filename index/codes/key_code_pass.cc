#include <algorithm>
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

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2

using Bytes = hn::CappedTag<std::uint8_t, code_block>;
using Pairs = hn::Repartition<std::uint16_t, Bytes>;
using Sums = hn::Repartition<std::int32_t, Bytes>;
using Floats = hn::Repartition<float, Bytes>;

constexpr std::int64_t quarters = 4;  // vectors of sums for as many keys as a vector has bytes
// Groups of 4 bytes added up at a time: 16 bits hold the sums of 8 groups, 32 bits hold all.
constexpr std::int64_t groups_at_once = HWY_TARGET <= HWY_AVX3_DL ? 32 : 8;

constexpr std::int64_t queries_at_once = HWY_TARGET <= HWY_AVX3 ? 4 : 2;  // as registers hold sums

#if HWY_TARGET <= HWY_AVX3_DL

/// sums, of each 4 bytes, and their products with coefficients.
HWY_INLINE hn::Vec<Sums> add_products(hn::Vec<Sums> sums, hn::Vec<Bytes> values,
                                      hn::Vec<Sums> coefficients) {
  return add_products_of_4(sums, values.raw, coefficients.raw);
}
HWY_INLINE hn::Vec<Sums> widen(hn::Vec<Sums> sums) { return sums; }

#else

/// The same, of each 2 bytes as 16 bits.
HWY_INLINE hn::Vec<Sums> add_products(hn::Vec<Sums> sums, hn::Vec<Bytes> values,
                                      hn::Vec<Sums> coefficients) {
#if HWY_TARGET == HWY_AVX3
  const hn::Vec<Sums> products{_mm512_maddubs_epi16(values.raw, coefficients.raw)};
#else
  const hn::Vec<Sums> products{_mm256_maddubs_epi16(values.raw, coefficients.raw)};
#endif
  const Pairs d16;  // which wrap around alike with and without a sign
  return hn::BitCast(Sums(), hn::Add(hn::BitCast(d16, sums), hn::BitCast(d16, products)));
}
HWY_INLINE hn::Vec<Sums> widen(hn::Vec<Sums> sums) {
  return hn::Add(hn::ShiftRight<16>(hn::ShiftLeft<16>(sums)), hn::ShiftRight<16>(sums));
}

#endif

/// Scores of as many keys as a vector has bytes. v[j] has four of them in each block of 128 bits:
/// keys 16 i + 4 j and on in block i.
HWY_INLINE void store_in_order(const hn::Vec<Floats> (&v)[quarters], float* to) {
  const Floats d;
#if HWY_TARGET <= HWY_AVX3
  const __m512 even01 = _mm512_shuffle_f32x4(v[0].raw, v[1].raw, 0x88);
  const __m512 odd01 = _mm512_shuffle_f32x4(v[0].raw, v[1].raw, 0xDD);
  const __m512 even23 = _mm512_shuffle_f32x4(v[2].raw, v[3].raw, 0x88);
  const __m512 odd23 = _mm512_shuffle_f32x4(v[2].raw, v[3].raw, 0xDD);
  hn::StoreU(hn::Vec<Floats>{_mm512_shuffle_f32x4(even01, even23, 0x88)}, d, to);
  hn::StoreU(hn::Vec<Floats>{_mm512_shuffle_f32x4(odd01, odd23, 0x88)}, d, to + 16);
  hn::StoreU(hn::Vec<Floats>{_mm512_shuffle_f32x4(even01, even23, 0xDD)}, d, to + 32);
  hn::StoreU(hn::Vec<Floats>{_mm512_shuffle_f32x4(odd01, odd23, 0xDD)}, d, to + 48);
#else
  hn::StoreU(hn::ConcatLowerLower(d, v[1], v[0]), d, to);
  hn::StoreU(hn::ConcatLowerLower(d, v[3], v[2]), d, to + 8);
  hn::StoreU(hn::ConcatUpperUpper(d, v[1], v[0]), d, to + 16);
  hn::StoreU(hn::ConcatUpperUpper(d, v[3], v[2]), d, to + 24);
#endif
}

/// Scores of the keys of a block from number `first` on, as many as a vector has bytes.
template <std::int64_t count>
HWY_INLINE void score_vector(const std::uint8_t* block, std::int64_t bytes, std::int64_t first,
                             const SlotWeights* queries, float* scores, std::int64_t stride,
                             std::int64_t ahead) {
  const Bytes d8;
  const Pairs d16;
  const Sums d32;
  const Floats d;
  const auto low = hn::Set(d8, std::uint8_t{3});
  const std::int64_t groups = (bytes + 3) / 4;
  hn::Vec<Sums> all[count][quarters];
  for (auto& of_query : all) {
    for (auto& sums : of_query) sums = hn::Zero(d32);
  }
  for (std::int64_t begin = 0; begin < groups; begin += groups_at_once) {
    hn::Vec<Sums> some[count][quarters];
    for (auto& of_query : some) {
      for (auto& sums : of_query) sums = hn::Zero(d32);
    }
    for (std::int64_t g = begin; g < std::min(groups, begin + groups_at_once); ++g) {
      const auto plane = [&](std::int64_t b) HWY_ATTR {
        // Into the cache of the second level: other work comes before the line is read.
        __builtin_prefetch(block + (4 * g + b) * code_block + first + ahead, 0, 2);
        return 4 * g + b < bytes ? hn::LoadU(d8, block + (4 * g + b) * code_block + first)
                                 : hn::Zero(d8);
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
            some[q][j] = add_products(some[q][j], values[j], coefficients);
        }
      };
      add_field(std::integral_constant<int, 0>());
      add_field(std::integral_constant<int, 1>());
      add_field(std::integral_constant<int, 2>());
      add_field(std::integral_constant<int, 3>());
    }
    for (std::int64_t q = 0; q < count; ++q) {
      for (std::int64_t j = 0; j < quarters; ++j) all[q][j] = hn::Add(all[q][j], widen(some[q][j]));
    }
  }
  for (std::int64_t q = 0; q < count; ++q) {
    const auto step = hn::Set(d, queries[q].step);
    const auto offset = hn::Set(d, queries[q].offset);
    hn::Vec<Floats> of_query[quarters];
    for (std::int64_t j = 0; j < quarters; ++j)
      of_query[j] = hn::MulAdd(hn::ConvertTo(d, all[q][j]), step, offset);
    store_in_order(of_query, scores + q * stride);
  }
}

/// Scores of the keys of a block.
template <std::int64_t count>
HWY_INLINE void score_block(const std::uint8_t* block, std::int64_t bytes,
                            const SlotWeights* queries, float* scores, std::int64_t stride,
                            std::int64_t ahead) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Bytes()));
  for (std::int64_t first = 0; first < code_block; first += lanes)
    score_vector<count>(block, bytes, first, queries, scores + first, stride, ahead);
}

#else

constexpr std::int64_t queries_at_once = 1;

/// As above, for other processors.
template <std::int64_t count>
void score_block(const std::uint8_t* block, std::int64_t bytes, const SlotWeights* queries,
                 float* scores, std::int64_t /*stride*/, std::int64_t /*ahead*/) {
  static_assert(count == 1);
  std::int32_t sums[code_block] = {};
  for (std::int64_t b = 0; b < bytes; ++b) {
    const std::uint8_t* plane = block + b * code_block;
    for (int field = 0; field < 4; ++field) {
      const std::int32_t coefficient =
          queries->coefficients[static_cast<std::size_t>((b / 4 * 4 + field) * 4 + b % 4)];
      for (std::int64_t i = 0; i < code_block; ++i)
        sums[i] += coefficient * (plane[i] >> (2 * field) & 3);
    }
  }
  for (std::int64_t i = 0; i < code_block; ++i)
    scores[i] = static_cast<float>(sums[i]) * queries->step + queries->offset;
}

#endif

template <std::int64_t some>
void score_blocks(const std::uint8_t* codes, std::int64_t bytes, const SlotWeights* queries,
                  std::int64_t count, float* scores, std::int64_t stride, std::int64_t ahead) {
  for (std::int64_t at = 0; at < count; at += code_block)
    score_block<some>(codes + at * bytes, bytes, queries, scores + at, stride, ahead);
}

/// Of whole blocks, few enough to be still near when the next queries read them.
void score_queries(const std::uint8_t* codes, std::int64_t bytes,
                   std::span<const SlotWeights> queries, std::int64_t count, float* scores,
                   std::int64_t stride, std::int64_t ahead) {
  const std::int64_t all = std::ssize(queries);
  for (std::int64_t q = 0; q < all;) {
    const auto score = [&](auto some) {
      score_blocks<std::min<std::int64_t>(decltype(some)::value, queries_at_once)>(
          codes, bytes, &queries[static_cast<std::size_t>(q)], count, scores + q * stride, stride,
          ahead);
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
                     std::int64_t stride, std::int64_t ahead) {
  constexpr std::int64_t keys_at_once = 4 * code_block;
  const std::int64_t whole = count / code_block * code_block;
  for (std::int64_t at = 0; at < whole; at += keys_at_once) {
    score_queries(codes + at * bytes, bytes, queries, std::min(keys_at_once, whole - at),
                  scores + at, stride, ahead);
  }
  if (whole == count) return;
  float last[code_block];
  for (std::int64_t q = 0; q < std::ssize(queries); ++q) {
    score_queries(codes + whole * bytes, bytes, queries.subspan(static_cast<std::size_t>(q), 1),
                  code_block, last, code_block, ahead);
    std::copy_n(last, count - whole, scores + q * stride + whole);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(score_codes_any);

void score_codes(const std::uint8_t* codes, std::int64_t bytes,
                 std::span<const SlotWeights> queries, std::int64_t first, std::int64_t count,
                 float* scores, std::int64_t stride, std::int64_t ahead) {
  HWY_DYNAMIC_DISPATCH(score_codes_any)
  (codes + first * bytes, bytes, queries, count, scores, stride, ahead * bytes);
}

}  // namespace topkv
#endif
