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

#if HWY_TARGET == HWY_SCALAR

/// As below, for processors without shuffles.
void sum_entries(const std::uint8_t* block, std::int64_t bytes, const std::uint8_t* entries,
                 std::uint16_t* sums) {
  for (std::int64_t key = 0; key < code_block; ++key) {
    unsigned sum = 0;
    for (std::int64_t b = 0; b < bytes; ++b) {
      const unsigned x = block[b * code_block + key];
      sum += entries[2 * b * 16 + (x & 15)];
      sum += entries[(2 * b + 1) * 16 + (x >> 4)];
    }
    sums[key % 2 * code_block / 2 + key / 2] = static_cast<std::uint16_t>(sum);
  }
}

#else

using Bytes = hn::CappedTag<std::uint8_t, code_block>;
using Halves = hn::Repartition<std::uint16_t, Bytes>;

/// Sums of the table entries of code_block keys: those of even keys, then those of odd ones.
HWY_INLINE void sum_entries(const std::uint8_t* block, std::int64_t bytes,
                            const std::uint8_t* entries, std::uint16_t* sums) {
  const Bytes d8;
  const Halves d16;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d8));
  const auto low = hn::Set(d8, std::uint8_t{15});
  for (std::int64_t lane = 0; lane < code_block; lane += lanes) {
    // Entries are added two at a time as 16 bits, which wrap around; the odd ones once more alone.
    auto both = hn::Zero(d16);
    auto odd = hn::Zero(d16);
    const auto add = [&](std::int64_t nibble, auto index) HWY_ATTR {
      const auto table = hn::LoadDup128(d8, entries + nibble * 16);
      const auto entry = hn::BitCast(d16, hn::TableLookupBytes(table, index));
      both = hn::Add(both, entry);
      odd = hn::Add(odd, hn::ShiftRight<8>(entry));
    };
    for (std::int64_t b = 0; b < bytes; ++b) {
      const auto x = hn::LoadU(d8, block + b * code_block + lane);
      const auto shifted = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, x)));
      add(2 * b, hn::And(x, low));
      add(2 * b + 1, hn::And(shifted, low));
    }
    const auto even = hn::Sub(both, hn::ShiftLeft<8>(odd));
    hn::StoreU(even, d16, sums + lane / 2);
    hn::StoreU(odd, d16, sums + code_block / 2 + lane / 2);
  }
}

#endif

void score_codes_any(const std::uint8_t* codes, std::int64_t bytes, const CodeTables& tables,
                     std::int64_t first, std::int64_t count, float* scores) {
  const hn::CappedTag<float, code_block / 2> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto step = hn::Set(d, tables.step);
  const auto offset = hn::Set(d, tables.offset);
  std::uint16_t sums[code_block];
  float last[code_block];
  for (std::int64_t begin = 0; begin < count; begin += code_block) {
    sum_entries(codes + (first + begin) * bytes, bytes, tables.entries.data(), sums);
    const std::int64_t size = count - begin;
    float* out = size < code_block ? last : scores + begin;
    for (std::int64_t i = 0; i < code_block / 2; i += lanes) {
      const auto score_of = [&](const std::uint16_t* from) HWY_ATTR {
        const auto sum = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d16, from)));
        return hn::MulAdd(sum, step, offset);
      };
      hn::StoreInterleaved2(score_of(sums + i), score_of(sums + code_block / 2 + i), d,
                            out + 2 * i);
    }
    if (size < code_block) std::memcpy(scores + begin, last, static_cast<std::size_t>(size) * 4);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(score_codes_any);

void score_codes(const std::uint8_t* codes, std::int64_t bytes, const CodeTables& tables,
                 std::int64_t first, std::int64_t count, float* scores) {
  HWY_DYNAMIC_DISPATCH(score_codes_any)(codes, bytes, tables, first, count, scores);
}

}  // namespace topkv
#endif
