#include "index/key_codes.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "index/code_scan.cc"
#include <hwy/foreach_target.h>
#include "src/core/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

using Floats = hn::CappedTag<float, code_block>;
using Words = hn::RebindToUnsigned<Floats>;

/// table[x & 15] for each lane: a permutation of the 16 floats in one register, or in two.
HWY_INLINE hn::Vec<Floats> look_up(const float* table, hn::Vec<Words> x) {
  const Floats d;
  const Words du;
  if constexpr (hn::MaxLanes(d) == 16) {
    return hn::TableLookupLanes(hn::LoadU(d, table),
                                hn::IndicesFromVec(d, hn::And(x, hn::Set(du, 15U))));
  } else if constexpr (hn::MaxLanes(d) == 8) {
    const auto lane = hn::IndicesFromVec(d, hn::And(x, hn::Set(du, 7U)));
    const auto low = hn::TableLookupLanes(hn::LoadU(d, table), lane);
    const auto high = hn::TableLookupLanes(hn::LoadU(d, table + 8), lane);
    const auto is_high = hn::Ne(hn::And(x, hn::Set(du, 8U)), hn::Zero(du));
    return hn::IfThenElse(hn::RebindMask(d, is_high), high, low);
  } else {
    const hn::RebindToSigned<Floats> di;
    return hn::GatherIndex(d, table, hn::BitCast(di, hn::And(x, hn::Set(du, 15U))));
  }
}

void score_codes_any(const std::uint32_t* codes, std::int64_t words, const float* tables,
                     float base, std::int64_t first, std::int64_t count, float* scores) {
  const Floats d;
  const Words du;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t begin = 0; begin < count; begin += code_block) {
    const std::uint32_t* block = codes + (first + begin) * words;
    alignas(64) float out[code_block];
    for (std::int64_t lane = 0; lane < code_block; lane += lanes) {
      auto even = hn::Set(d, base);
      auto odd = hn::Zero(d);
      const float* table = tables;
      for (std::int64_t w = 0; w < words; ++w) {
        auto x = hn::LoadU(du, block + w * code_block + lane);
        for (int pair = 0; pair < code_nibbles_per_word / 2; ++pair) {
          even = hn::Add(even, look_up(table, x));
          odd = hn::Add(odd, look_up(table + 16, hn::ShiftRight<4>(x)));
          x = hn::ShiftRight<8>(x);
          table += 32;
        }
      }
      hn::Store(hn::Add(even, odd), d, out + lane);
    }
    const std::int64_t size = count - begin < code_block ? count - begin : code_block;
    for (std::int64_t i = 0; i < size; ++i) scores[begin + i] = out[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(score_codes_any);

void score_codes(const std::uint32_t* codes, std::int64_t words, const float* tables, float base,
                 std::int64_t first, std::int64_t count, float* scores) {
  HWY_DYNAMIC_DISPATCH(score_codes_any)(codes, words, tables, base, first, count, scores);
}

}  // namespace topkv
#endif
