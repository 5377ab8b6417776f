#include "src/core/math/nibble_product.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "src/core/math/packed_product.h"
#include "src/core/math/packed_rows.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/math/nibble_product.cc"
#define HWY_WANT_AVX3_DL  // add_products_of_4 needs AVX-512 VNNI
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

#if HWY_TARGET <= HWY_SSSE3

using Floats = hn::ScalableTag<float>;
using Four = hn::CappedTag<float, 4>;

// A vector of L words has the codes of 8 L consecutive inputs, a *block*: in the low halves of a
// word's bytes those of its inputs 0, 4, 1 and 5, in the high halves those of 2, 6, 3 and 7. Of
// activations x = unit * (65536 d2 + 256 d1 + d0), where a digit is a signed byte, a block has, as
// floats or in the room of as many:
//
//   digits   for each of the 3, those that the low halves meet and those that the high ones do
//   unit     [L] times the same
//
// One or two blocks of a group, a *flush*, share a unit, and are summed before they are scaled.
// Inputs behind the last whole flush come in blocks of vectors of 4 lanes. Then follow the sums of
// the inputs of each group.
constexpr int word_inputs = 8;
constexpr int digits = 3;
constexpr int input_of_byte[2][4] = {{0, 4, 1, 5}, {2, 6, 3, 7}};
constexpr std::int64_t least_group = 32;  // inputs; groups and blocks are multiples of it
constexpr std::int64_t words_of_block = 2 * digits + 1;  // of each lane

template <class D>
constexpr std::int64_t block_inputs(D d) {
  return word_inputs * static_cast<std::int64_t>(hn::MaxLanes(d));
}

/// Sums of products of two blocks fit 16 bits.
template <class D>
std::int64_t blocks_of_flush(D d, std::int64_t group) {
  return block_inputs(d) <= 64 && group % (2 * block_inputs(d)) == 0 ? 2 : 1;
}

/// Codes are made non-negative: what instructions take that add products of bytes.
constexpr int bias_of(Packing packing) { return packing == Packing::int4 ? 8 : 12; }

/// Of what the four bits of an fp4 code stand for, and its bias.
alignas(16) constexpr std::array<std::uint8_t, 16> biased_fp4 = {12, 13, 14, 15, 16, 18, 20, 24,
                                                                 12, 11, 10, 9,  8,  6,  4,  0};

/// Arranges `count` inputs, a flush, of which x[0] is input `first`, and adds them to the sums of
/// their groups.
template <class D>
float* arrange_flush(D d, const float* x, std::int64_t count, std::int64_t first,
                     std::int64_t group, float* sums, float* to) {
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto step = static_cast<std::size_t>(lanes);
  auto most = hn::Zero(d);
  auto all = hn::Zero(d);  // not finite if one of them is not
  for (std::int64_t i = 0; i < count; i += lanes) {
    const auto some = hn::LoadU(d, x + i);
    most = hn::Max(most, hn::Abs(some));
    all = hn::MulAdd(some, hn::Zero(d), all);
  }
  const bool finite = hn::GetLane(hn::SumOfLanes(d, all)) == 0;
  // Scaled by 2^power the largest is at most 2^22.
  int exponent = 0;
  std::frexp(finite ? hn::GetLane(hn::MaxOfLanes(d, most)) : 1.0F, &exponent);
  const int power = std::min(22 - exponent, 126);
  const float unit = finite ? std::ldexp(1.0F, -power) : std::numeric_limits<float>::quiet_NaN();
  const auto scale = hn::Set(d, std::ldexp(1.0F, power));
  const auto byte = hn::Set(du, 0xffU);
  // Each digit's byte is 128 too large after the addition.
  const auto too_large = hn::Set(du, 0x808080U);
  alignas(64) std::array<std::int32_t, word_inputs * hn::MaxLanes(Floats())> whole;
  for (std::int64_t begin = 0; begin < count; begin += block_inputs(d)) {
    for (std::int64_t i = 0; i < block_inputs(d); i += lanes) {
      const auto some = hn::LoadU(d, x + begin + i);
      hn::Store(hn::NearestInt(finite ? hn::Mul(some, scale) : hn::Zero(d)), di, whole.data() + i);
    }
    for (std::int64_t i = 0; i < block_inputs(d); i += least_group) {
      std::int32_t sum = 0;
      for (std::int64_t j = i; j < i + least_group; ++j) sum += whole[static_cast<std::size_t>(j)];
      sums[(first + begin + i) / group] += static_cast<float>(sum) * unit;
    }
    hn::Vec<decltype(du)> bytes[word_inputs];
    alignas(64) std::array<std::uint32_t, hn::MaxLanes(Floats())> column;
    for (std::size_t i = 0; i < word_inputs; ++i) {
      for (std::size_t lane = 0; lane < step; ++lane)
        column[lane] = static_cast<std::uint32_t>(whole[word_inputs * lane + i]);
      bytes[i] = hn::Xor(hn::Add(hn::Load(du, column.data()), too_large), too_large);
    }
    for (int digit = 0; digit < digits; ++digit) {
      for (const auto& inputs : input_of_byte) {
        auto word = hn::And(bytes[inputs[0]], byte);
        word = hn::Or(word, hn::ShiftLeft<8>(hn::And(bytes[inputs[1]], byte)));
        word = hn::Or(word, hn::ShiftLeft<16>(hn::And(bytes[inputs[2]], byte)));
        word = hn::Or(word, hn::ShiftLeft<24>(bytes[inputs[3]]));
        hn::StoreU(hn::BitCast(d, word), d, to);
        to += lanes;
      }
      for (auto& four : bytes) four = hn::ShiftRight<8>(four);
    }
    hn::StoreU(hn::Set(d, unit), d, to);
    to += lanes;
  }
  return to;
}

/// Sums of the products of neighbouring bytes, the first without a sign. REQUIRES: they are below
/// 2^15.
template <class V8, class VI8>
HWY_INLINE auto pair_products(V8 codes, VI8 of_digits) {
  using D = hn::DFromV<VI8>;
  const hn::RepartitionToWide<D> d16;
  using V16 = hn::Vec<decltype(d16)>;
  if constexpr (sizeof(codes.raw) == 16) {
    return V16{_mm_maddubs_epi16(codes.raw, of_digits.raw)};
#if HWY_TARGET <= HWY_AVX2
  } else if constexpr (sizeof(codes.raw) == 32) {
    return V16{_mm256_maddubs_epi16(codes.raw, of_digits.raw)};
#endif
#if HWY_TARGET <= HWY_AVX3
  } else {
    return V16{_mm512_maddubs_epi16(codes.raw, of_digits.raw)};
#endif
  }
}

/// Sums of neighbours, times a factor from 1 to 2^15 - 1.
template <class V16>
HWY_INLINE auto pair_sums(V16 of, int factor) {
  const hn::DFromV<V16> d16;
  const hn::RepartitionToWide<decltype(d16)> d32;
  using V32 = hn::Vec<decltype(d32)>;
  const auto factors = hn::Set(d16, static_cast<std::int16_t>(factor));
  if constexpr (sizeof(of.raw) == 16) {
    return V32{_mm_madd_epi16(of.raw, factors.raw)};
#if HWY_TARGET <= HWY_AVX2
  } else if constexpr (sizeof(of.raw) == 32) {
    return V32{_mm256_madd_epi16(of.raw, factors.raw)};
#endif
#if HWY_TARGET <= HWY_AVX3
  } else {
    return V32{_mm512_madd_epi16(of.raw, factors.raw)};
#endif
  }
}

/// Codes of the low or high halves of bytes, made non-negative.
template <Packing packing, class D8, class V8>
HWY_INLINE V8 codes_of(D8 d8, V8 nibbles) {
  if constexpr (packing == Packing::int4) {
    (void)d8;
    return nibbles;  // 8 more than what they stand for
  } else {
    return hn::TableLookupBytes(hn::LoadDup128(d8, biased_fp4.data()), nibbles);
  }
}

/// For each lane of D, the sum of the products of its codes with what the digits of an activation
/// stand for. bytes(digit, half, block) are those that the low (0) or high (1) halves of codes
/// meet.
template <int blocks, class D, class V8, class Bytes>
HWY_INLINE auto digit_products(D d, const V8* low, const V8* high, const Bytes& bytes) {
#if HWY_TARGET <= HWY_AVX3_DL
  if constexpr (sizeof(low[0].raw) == 64) {
    auto sum = hn::Zero(hn::RebindToSigned<D>());
#pragma GCC unroll 3
    for (int digit = digits - 1; digit >= 0; --digit) {
      if (digit < digits - 1) sum = hn::ShiftLeft<8>(sum);
#pragma GCC unroll 2
      for (int b = 0; b < blocks; ++b) {
        sum = add_products_of_4(sum, low[b].raw, bytes(digit, 0, b).raw);
        sum = add_products_of_4(sum, high[b].raw, bytes(digit, 1, b).raw);
      }
    }
    return sum;
  } else
#endif
  {
    (void)d;
    const auto products = [&](int digit) HWY_ATTR {
      const auto of_block = [&](int b) HWY_ATTR {
        return hn::Add(pair_products(low[b], bytes(digit, 0, b)),
                       pair_products(high[b], bytes(digit, 1, b)));
      };
      if constexpr (blocks == 1) return of_block(0);
      return hn::Add(of_block(0), of_block(blocks - 1));
    };
    const auto high_digits = hn::Add(pair_sums(products(2), 256), pair_sums(products(1), 1));
    return hn::Add(hn::ShiftLeft<8>(high_digits), pair_sums(products(0), 1));
  }
}

// Which scales the words of a block have, one to a lane.

/// One group has whole flushes.
template <class D>
class OneGroup {
 public:
  OneGroup(D /*d*/, std::int64_t group) : group_(group) {}
  /// Of the block that begins with this input.
  HWY_INLINE void begin(D /*d*/, std::int64_t input) { first_ = input / group_; }
  HWY_INLINE hn::Vec<D> of(D d, const float* scales) const { return hn::Set(d, scales[first_]); }

 protected:
  std::int64_t group_;
  std::int64_t first_ = 0;  // the group that the block begins in
};

/// A block has two whole groups. This and the next are faster than gathering.
template <class D>
class TwoGroups : public OneGroup<D> {
 public:
  using OneGroup<D>::OneGroup;
  HWY_INLINE hn::Vec<D> of(D d, const float* scales) const {
    const float* from = scales + this->first_;
    return hn::ConcatLowerLower(d, hn::Set(d, from[1]), hn::Set(d, from[0]));
  }
};

/// A block of 16 lanes has four whole groups.
template <class D>
class FourGroups : public OneGroup<D> {
 public:
  FourGroups(D d, std::int64_t group)
      : OneGroup<D>(d, group),
        group_of_lane_(hn::IndicesFromVec(d, hn::ShiftRight<2>(hn::Iota(Index(), 0)))) {
    static_assert(hn::MaxLanes(D()) == 16);
  }
  HWY_INLINE hn::Vec<D> of(D d, const float* scales) const {
    return hn::TableLookupLanes(hn::LoadDup128(d, scales + this->first_), group_of_lane_);
  }

 private:
  using Index = hn::RebindToSigned<D>;
  decltype(hn::IndicesFromVec(D(), hn::Vec<Index>())) group_of_lane_;
};

/// A block begins anywhere in a group.
template <class D>
class AnyGroups : public OneGroup<D> {
 public:
  using OneGroup<D>::OneGroup;
  HWY_INLINE void begin(D d, std::int64_t input) {
    OneGroup<D>::begin(d, input);
    const std::int64_t before = input - this->first_ * this->group_;  // inputs of that group
    for (std::size_t lane = 0; lane < hn::Lanes(d); ++lane) {
      lanes_[lane] = static_cast<std::int32_t>(
          (before + word_inputs * static_cast<std::int64_t>(lane)) / this->group_);
    }
  }
  HWY_INLINE hn::Vec<D> of(D d, const float* scales) const {
    return hn::GatherIndex(d, scales + this->first_, hn::Load(hn::RebindToSigned<D>(), lanes_));
  }

 private:
  alignas(64) std::int32_t lanes_[hn::MaxLanes(Floats())];
};

/// A matrix, with what every row needs of it found once.
struct NibbleMatrix {
  explicit NibbleMatrix(const Matrix& m)
      : codes(m.data),
        scales(m.scales()),
        offsets(m.offsets()),
        row_bytes(m.row_bytes()),
        in_features(m.in_features),
        group(m.group),
        groups(m.groups()),
        bias(static_cast<float>(bias_of(m.packing))) {}

  const std::byte* codes;
  const float* scales;
  const float* offsets;  ///< null: none
  std::int64_t row_bytes, in_features, group, groups;
  float bias;
};

/// Rows that are multiplied side by side.
template <int rows, int tokens, class D>
struct NibbleRows {
  const std::byte* codes[rows];
  const float* scales[rows];
  hn::Vec<D> totals[rows][tokens];
};

template <int rows, int tokens, class D>
HWY_INLINE NibbleRows<rows, tokens, D> nibble_rows(D d, const NibbleMatrix& m, std::int64_t first) {
  NibbleRows<rows, tokens, D> at;
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
    at.codes[r] = m.codes + (first + r) * m.row_bytes;
    at.scales[r] = m.scales + (first + r) * m.groups;
#pragma GCC unroll 4
    for (int t = 0; t < tokens; ++t) at.totals[r][t] = hn::Zero(d);
  }
  return at;
}

/// Adds the products of the inputs [begin, end) of some rows, whose codes are too large by their
/// bias. arranged: of token t at arranged + t * token_stride.
template <Packing packing, int rows, int tokens, int blocks, class Groups, class D>
HWY_INLINE const float* add_nibbles(D d, std::int64_t begin, std::int64_t end, std::int64_t group,
                                    const float* arranged, std::int64_t token_stride,
                                    std::int64_t ahead, NibbleRows<rows, tokens, D>& at) {
  const hn::Repartition<std::uint8_t, D> d8;
  const hn::Repartition<std::int8_t, D> di8;
  const hn::Repartition<std::uint16_t, D> d16;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto low_half = hn::Set(d8, 15);
  Groups groups(d, group);
  for (std::int64_t input = begin; input < end; input += blocks * block_inputs(d)) {
    groups.begin(d, input);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const std::byte* from = at.codes[r] + input / 2;
      hn::Vec<decltype(d8)> low[blocks];
      hn::Vec<decltype(d8)> high[blocks];
#pragma GCC unroll 2
      for (int b = 0; b < blocks; ++b) {
        const auto both =
            hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(from + 4 * b * lanes));
        low[b] = codes_of<packing>(d8, hn::And(both, low_half));
        high[b] = codes_of<packing>(
            d8, hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, both))), low_half));
      }
      __builtin_prefetch(from + ahead);
      const auto scale = groups.of(d, at.scales[r]);
#pragma GCC unroll 4
      for (int t = 0; t < tokens; ++t) {
        const float* x = arranged + t * token_stride;
        const auto sum =
            digit_products<blocks>(d, low, high, [&](int digit, int half, int b) HWY_ATTR {
              const float* from = x + (b * words_of_block + 2 * digit + half) * lanes;
              return hn::LoadU(di8, reinterpret_cast<const std::int8_t*>(from));
            });
        const auto unit = hn::LoadU(d, x + 2 * digits * lanes);
        at.totals[r][t] = hn::MulAdd(hn::Mul(hn::ConvertTo(d, sum), unit), scale, at.totals[r][t]);
      }
    }
    arranged += blocks * words_of_block * lanes;
  }
  return arranged;
}

/// Adds to a row's totals what each input is multiplied with besides its code, summed over groups:
/// the offset, and the scale as often as codes are too large. Returns the sum of what is left over.
template <class V>
HWY_INLINE float add_groups(const NibbleMatrix& m, std::int64_t row, const float* sums, V& totals) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float* scales = m.scales + row * m.groups;
  const float* offsets = m.offsets == nullptr ? nullptr : m.offsets + row * m.groups;
  const auto bias = hn::Set(d, m.bias);
  std::int64_t g = 0;
  for (; g + lanes <= m.groups; g += lanes) {
    const auto sum = hn::LoadU(d, sums + g);
    totals = hn::NegMulAdd(hn::Mul(sum, bias), hn::LoadU(d, scales + g), totals);
    if (offsets != nullptr) totals = hn::MulAdd(sum, hn::LoadU(d, offsets + g), totals);
  }
  float rest = 0;
  for (; g < m.groups; ++g) {
    rest -= m.bias * sums[g] * scales[g];
    if (offsets != nullptr) rest += sums[g] * offsets[g];
  }
  return rest;
}

template <Packing packing, int rows, int tokens, int blocks, class Groups>
HWY_INLINE void dot_nibbles(const NibbleMatrix& m, std::int64_t first, const float* arranged,
                            std::int64_t token_stride, float* out, std::int64_t stride) {
  const Floats d;
  const Four d4;
  const std::int64_t flush = blocks * block_inputs(d);
  const std::int64_t whole = m.in_features / flush * flush;
  const std::int64_t ahead = fetch_ahead(m.row_bytes, rows);
  auto at = nibble_rows<rows, tokens>(d, m, first);
  const float* rest = add_nibbles<packing, rows, tokens, blocks, Groups>(
      d, 0, whole, m.group, arranged, token_stride, ahead, at);
  const float* sums = rest;
  float behind[rows][tokens] = {};
  if (whole < m.in_features) {
    auto last = nibble_rows<rows, tokens>(d4, m, first);
    sums = add_nibbles<packing, rows, tokens, 1, OneGroup<Four>>(d4, whole, m.in_features, m.group,
                                                                 rest, token_stride, ahead, last);
    for (int r = 0; r < rows; ++r) {
      for (int t = 0; t < tokens; ++t)
        behind[r][t] = hn::GetLane(hn::SumOfLanes(d4, last.totals[r][t]));
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < tokens; ++t) {
      behind[r][t] += add_groups(m, first + r, sums + t * token_stride, at.totals[r][t]);
      out[t * stride + r] = hn::GetLane(hn::SumOfLanes(d, at.totals[r][t])) + behind[r][t];
    }
  }
}

template <Packing packing, int rows, int tokens>
void dot_nibble_rows(const NibbleMatrix& m, std::int64_t first, const float* arranged,
                     std::int64_t token_stride, float* out, std::int64_t stride) {
  constexpr Floats d;
  const auto dot = [&]<int blocks, class Groups>() HWY_ATTR {
    dot_nibbles<packing, rows, tokens, blocks, Groups>(m, first, arranged, token_stride, out,
                                                       stride);
  };
  if (blocks_of_flush(d, m.group) == 2) return dot.template operator()<2, OneGroup<Floats>>();
  if (m.group % block_inputs(d) == 0) return dot.template operator()<1, OneGroup<Floats>>();
  if (block_inputs(d) == 2 * m.group) return dot.template operator()<1, TwoGroups<Floats>>();
  if constexpr (hn::MaxLanes(d) == 16) {
    if (block_inputs(d) == 4 * m.group) return dot.template operator()<1, FourGroups<Floats>>();
  }
  dot.template operator()<1, AnyGroups<Floats>>();
}

void nibble_dot_any(const Matrix& m, std::int64_t first, std::int64_t count, const float* arranged,
                    std::int64_t token_stride, std::int64_t tokens, float* out,
                    std::int64_t stride) {
  const NibbleMatrix of(m);
  each_rows(count, tokens, [&]<int rows, int at_once>(std::int64_t r) HWY_ATTR {
    const auto dot = m.packing == Packing::fp4 ? dot_nibble_rows<Packing::fp4, rows, at_once>
                                               : dot_nibble_rows<Packing::int4, rows, at_once>;
    dot(of, first + r, arranged, token_stride, out + r, stride);
  });
}

void arrange_for_nibbles_any(const Matrix& m, const float* x, float* to) {
  const Floats d;
  const Four d4;
  const std::int64_t flush = blocks_of_flush(d, m.group) * block_inputs(d);
  float* sums = to + words_of_block * (m.in_features / word_inputs);
  std::fill_n(sums, m.groups(), 0.0F);
  std::int64_t i = 0;
  for (; i + flush <= m.in_features; i += flush)
    to = arrange_flush(d, x + i, flush, i, m.group, sums, to);
  for (; i < m.in_features; i += block_inputs(d4))
    to = arrange_flush(d4, x + i, block_inputs(d4), i, m.group, sums, to);
}

#else

void nibble_dot_any(const Matrix& m, std::int64_t first, std::int64_t rows, const float* x,
                    std::int64_t token_stride, std::int64_t tokens, float* out,
                    std::int64_t stride) {
  constexpr std::int64_t piece = 32;  // divides groups
  std::int8_t codes[piece];
  for (std::int64_t r = first; r < first + rows; ++r) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const float* inputs = x + t * token_stride;
      float total = 0;
      for (std::int64_t begin = 0; begin < m.in_features; begin += piece) {
        unpack_nibbles(m.packing, m.data + r * m.row_bytes() + begin / 2, piece, codes);
        float products = 0;
        float sum = 0;
        for (std::int64_t i = 0; i < piece; ++i) {
          products += static_cast<float>(codes[i]) * inputs[begin + i];
          sum += inputs[begin + i];
        }
        const std::int64_t factor = r * m.groups() + begin / m.group;
        total += products * m.scales()[factor];
        if (m.has_offsets) total += sum * m.offsets()[factor];
      }
      out[t * stride + r - first] = total;
    }
  }
}

void arrange_for_nibbles_any(const Matrix& m, const float* x, float* to) {
  std::copy_n(x, m.in_features, to);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(nibble_dot_any);
HWY_EXPORT(arrange_for_nibbles_any);

void arrange_for_nibbles(const Matrix& packed, const float* x, float* arranged) {
  HWY_DYNAMIC_DISPATCH(arrange_for_nibbles_any)(packed, x, arranged);
}

void nibble_dot(const Matrix& packed, std::int64_t first, std::int64_t rows, const float* arranged,
                std::int64_t tokens, float* out, std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(nibble_dot_any)
  (packed, first, rows, arranged, arranged_size(packed), tokens, out, stride);
}

}  // namespace topkv
#endif
