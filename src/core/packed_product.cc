#include "src/core/packed_product.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/packed_product.cc"
#include <hwy/foreach_target.h>
#include "src/core/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;
using Four = hn::CappedTag<float, 4>;

/// How far ahead codes are fetched, in bytes, where so many rows are read side by side: within a
/// long row, else as far on in the next rows.
std::int64_t fetch_ahead(std::int64_t row_bytes, std::int64_t rows) {
  constexpr std::int64_t enough = 4096;
  if (row_bytes > enough) return 1024;
  return (enough / (rows * row_bytes) + 1) * rows * row_bytes;
}

// int4 and fp4: a vector of L words has 8 L consecutive inputs. Mask p of 8 leaves the codes of
// inputs 8 * lane + input_of(p), so activations are arranged in blocks: 8 vectors in that order,
// then the vector of their sums, for the offsets. Inputs behind the last whole block come in blocks
// of vectors of 4 lanes.
constexpr int masks = 8;
constexpr int input_of(int mask) { return mask < 4 ? 2 * mask : 2 * (mask - 4) + 1; }

template <class D>
std::int64_t block_inputs(D d) {
  return masks * static_cast<std::int64_t>(hn::Lanes(d));
}

template <class D>
float* arrange_block(D d, const float* x, float* to) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  float* sums = to + masks * lanes;
  std::fill(sums, sums + lanes, 0.0F);
  for (int p = 0; p < masks; ++p, to += lanes) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      to[lane] = x[masks * lane + input_of(p)];
      sums[lane] += to[lane];
    }
  }
  return sums + lanes;
}

/// What the four bits of a code stand for.
template <Packing packing, class T>
constexpr std::array<T, 16> nibble_codes =
    packing == Packing::int4
        ? std::array<T, 16>{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}
        : std::array<T, 16>{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// Code p of every word, as float32.
template <Packing packing, int p, class D, class W>
HWY_INLINE hn::Vec<D> code_of(D d, W words) {
#if HWY_TARGET <= HWY_AVX3
  if constexpr (hn::MaxLanes(d) == 16) {
    // The permutation takes the lowest four bits of each lane.
    alignas(64) static constexpr std::array<float, 16> codes = nibble_codes<packing, float>;
    const auto table = hn::Load(d, codes.data());
    return hn::Vec<D>{_mm512_permutexvar_ps(hn::ShiftRight<4 * p>(words).raw, table.raw)};
  }
#endif
  const hn::RebindToSigned<D> di;
  if constexpr (packing == Packing::fp4) {
    const hn::RebindToUnsigned<D> du;
    const auto nibbles = hn::And(hn::ShiftRight<4 * p>(words), hn::Set(du, 15));
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, nibble_codes<packing, float>[hn::GetLane(nibbles)]);
#else
    // A byte of each lane looks its code up; the others, of index 0, find 0.
    const hn::Repartition<std::int8_t, D> d8;
    alignas(16) static constexpr std::array<std::int8_t, 16> codes =
        nibble_codes<packing, std::int8_t>;
    const auto found =
        hn::TableLookupBytes(hn::LoadDup128(d8, codes.data()), hn::BitCast(d8, nibbles));
    return hn::ConvertTo(d, hn::ShiftRight<24>(hn::ShiftLeft<24>(hn::BitCast(di, found))));
#endif
  }
  const auto top = hn::BitCast(di, hn::ShiftLeft<28 - 4 * p>(words));
  const auto flip = hn::Set(di, static_cast<std::int32_t>(0x80000000U));
  return hn::ConvertTo(d, hn::ShiftRight<28>(hn::Xor(top, flip)));
}

/// Which scales (and offsets) the words of a block have, one to a lane. A block has words of one
/// group, or of some whole groups, or of whatever it meets.
template <class D>
class BlockGroups {
 public:
  BlockGroups(D d, std::int64_t group)
      : group_(group),
        one_(group % block_inputs(d) == 0),
        two_(block_inputs(d) == 2 * group),
        whole_(block_inputs(d) % group == 0) {
    lay_out(d, 0);
  }

  /// Of the block that begins with this input.
  HWY_INLINE void begin(D d, std::int64_t input) {
    first_ = input / group_;
    if (!one_ && !whole_) lay_out(d, input - first_ * group_);
  }
  HWY_INLINE hn::Vec<D> of(D d, const float* factors) const {
    if (one_) return hn::Set(d, factors[first_]);
#if HWY_TARGET != HWY_SCALAR
    if (two_) {  // faster than gathering
      return hn::ConcatLowerLower(d, hn::Set(d, factors[first_ + 1]), hn::Set(d, factors[first_]));
    }
#endif
    return hn::GatherIndex(d, factors + first_, hn::Load(Index(), lanes_));
  }

 private:
  using Index = hn::RebindToSigned<D>;

  /// before: inputs of the first group in front of the block.
  void lay_out(D d, std::int64_t before) {
    for (std::size_t lane = 0; lane < hn::Lanes(d); ++lane) {
      lanes_[lane] =
          static_cast<std::int32_t>((before + masks * static_cast<std::int64_t>(lane)) / group_);
    }
  }

  std::int64_t group_;
  std::int64_t first_ = 0;
  bool one_, two_, whole_;
  alignas(64) std::int32_t lanes_[hn::MaxLanes(Floats())];
};

/// Rows that are multiplied side by side.
template <int rows, int tokens, class D>
struct NibbleRows {
  using V = hn::Vec<D>;
  const std::byte* codes[rows];
  const float* scales[rows];
  const float* offsets[rows];
  V totals[rows][tokens];
};

/// Adds the products of the inputs [begin, end) of some rows. arranged: of token t at
/// arranged + t * token_stride.
template <Packing packing, int rows, int tokens, bool with_offsets, class D>
HWY_INLINE const float* add_nibbles(D d, std::int64_t begin, std::int64_t end, std::int64_t group,
                                    const float* arranged, std::int64_t token_stride,
                                    std::int64_t ahead, NibbleRows<rows, tokens, D>& at) {
  using V = hn::Vec<D>;
  const hn::RebindToUnsigned<D> du;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  BlockGroups groups(d, group);
  for (std::int64_t input = begin; input < end; input += masks * lanes) {
    groups.begin(d, input);
    V sums[rows][tokens];
    hn::Vec<decltype(du)> words[rows];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const std::byte* from = at.codes[r] + input / 2;
      words[r] = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(from));
      __builtin_prefetch(from + ahead);
#pragma GCC unroll 4
      for (int t = 0; t < tokens; ++t) sums[r][t] = hn::Zero(d);
    }
    const auto add = [&]<int p>() HWY_ATTR __attribute__((always_inline)) {
      V x[tokens];
#pragma GCC unroll 4
      for (int t = 0; t < tokens; ++t) x[t] = hn::LoadU(d, arranged + t * token_stride + p * lanes);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        const V code = code_of<packing, p>(d, words[r]);
#pragma GCC unroll 4
        for (int t = 0; t < tokens; ++t) sums[r][t] = hn::MulAdd(x[t], code, sums[r][t]);
      }
    };
    add.template operator()<0>();
    add.template operator()<1>();
    add.template operator()<2>();
    add.template operator()<3>();
    add.template operator()<4>();
    add.template operator()<5>();
    add.template operator()<6>();
    add.template operator()<7>();
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const V scale = groups.of(d, at.scales[r]);
#pragma GCC unroll 4
      for (int t = 0; t < tokens; ++t)
        at.totals[r][t] = hn::MulAdd(sums[r][t], scale, at.totals[r][t]);
      if constexpr (with_offsets) {
        const V offset = groups.of(d, at.offsets[r]);
#pragma GCC unroll 4
        for (int t = 0; t < tokens; ++t) {
          const V x = hn::LoadU(d, arranged + t * token_stride + masks * lanes);
          at.totals[r][t] = hn::MulAdd(x, offset, at.totals[r][t]);
        }
      }
    }
    arranged += (masks + 1) * lanes;
  }
  return arranged;
}

template <int rows, int tokens, class D>
HWY_INLINE NibbleRows<rows, tokens, D> nibble_rows(D d, const Matrix& m, std::int64_t first) {
  NibbleRows<rows, tokens, D> at;
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
    at.codes[r] = m.data + (first + r) * m.row_bytes();
    at.scales[r] = m.scales() + (first + r) * m.groups();
    at.offsets[r] = m.has_offsets ? m.offsets() + (first + r) * m.groups() : nullptr;
#pragma GCC unroll 4
    for (int t = 0; t < tokens; ++t) at.totals[r][t] = hn::Zero(d);
  }
  return at;
}

template <Packing packing, int rows, int tokens, bool with_offsets>
HWY_INLINE void dot_nibbles(const Matrix& m, std::int64_t first, const float* arranged,
                            std::int64_t token_stride, float* out, std::int64_t stride) {
  const Floats d;
  const Four d4;
  const std::int64_t whole = m.in_features / block_inputs(d) * block_inputs(d);
  const std::int64_t ahead = fetch_ahead(m.row_bytes(), rows);
  auto at = nibble_rows<rows, tokens>(d, m, first);
  const float* rest = add_nibbles<packing, rows, tokens, with_offsets>(
      d, 0, whole, m.group, arranged, token_stride, ahead, at);
  auto behind = nibble_rows<rows, tokens>(d4, m, first);
  add_nibbles<packing, rows, tokens, with_offsets>(d4, whole, m.in_features, m.group, rest,
                                                   token_stride, ahead, behind);
  for (int r = 0; r < rows; ++r) {
    for (int t = 0; t < tokens; ++t) {
      out[t * stride + r] = hn::GetLane(hn::SumOfLanes(d, at.totals[r][t])) +
                            hn::GetLane(hn::SumOfLanes(d4, behind.totals[r][t]));
    }
  }
}

/// Codes of a byte as float32: those at `from`, as many as d has lanes.
template <Packing packing, class D>
HWY_INLINE hn::Vec<D> byte_codes(D d, const std::byte* from) {
  if constexpr (packing == Packing::int8) {
    const hn::Rebind<std::int8_t, D> d8;
    const hn::RebindToSigned<D> d32;
    const auto codes = hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(from));
    return hn::ConvertTo(d, hn::PromoteTo(d32, codes));
  } else {
    const hn::Rebind<std::uint8_t, D> d8;
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> half;
    const auto bits =
        hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(from)));
    const auto sign = hn::ShiftLeft<8>(hn::And(bits, hn::Set(d16, 0x80)));
    const auto rest = hn::ShiftLeft<7>(hn::And(bits, hn::Set(d16, 0x7f)));
    return hn::PromoteTo(d, hn::BitCast(half, hn::Or(sign, rest)));
  }
}

/// Arranged activations of int8 and fp8 are the activations, then their sums over each group.
template <Packing packing, int rows, int tokens>
HWY_INLINE void dot_bytes(const Matrix& m, std::int64_t first, const float* x,
                          std::int64_t token_stride, float* out, std::int64_t stride) {
  const Floats d;
  using V = hn::Vec<Floats>;
  const hn::CappedTag<float, 1> d1;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t groups = m.groups();
  const std::int64_t ahead = fetch_ahead(m.row_bytes(), rows);
  const std::byte* codes[rows];
  const float* scales[rows];
  V totals[rows][tokens];
  float behind[rows][tokens] = {};  // of inputs behind the last whole vector, and of the offsets
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
    codes[r] = m.data + (first + r) * m.row_bytes();
    scales[r] = m.scales() + (first + r) * groups;
#pragma GCC unroll 4
    for (int t = 0; t < tokens; ++t) totals[r][t] = hn::Zero(d);
  }
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::int64_t end = (g + 1) * m.group;
    std::int64_t input = g * m.group;
    V sums[rows][tokens];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int t = 0; t < tokens; ++t) sums[r][t] = hn::Zero(d);
    }
    for (; input + lanes <= end; input += lanes) {
      V values[tokens];
#pragma GCC unroll 4
      for (int t = 0; t < tokens; ++t) values[t] = hn::LoadU(d, x + t * token_stride + input);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
        const std::byte* from = codes[r] + input;
        __builtin_prefetch(from + ahead);
        const V code = byte_codes<packing>(d, from);
#pragma GCC unroll 4
        for (int t = 0; t < tokens; ++t) sums[r][t] = hn::MulAdd(values[t], code, sums[r][t]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const V scale = hn::Set(d, scales[r][g]);
#pragma GCC unroll 4
      for (int t = 0; t < tokens; ++t) totals[r][t] = hn::MulAdd(sums[r][t], scale, totals[r][t]);
    }
    if (input == end && !m.has_offsets) continue;
    for (int r = 0; r < rows; ++r) {
      const float offset = m.has_offsets ? m.offsets()[(first + r) * groups + g] : 0.0F;
      for (int t = 0; t < tokens; ++t) {
        const float* mine = x + t * token_stride;
        for (std::int64_t i = input; i < end; ++i) {
          behind[r][t] +=
              mine[i] * hn::GetLane(byte_codes<packing>(d1, codes[r] + i)) * scales[r][g];
        }
        behind[r][t] += offset * mine[m.in_features + g];
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int t = 0; t < tokens; ++t)
      out[t * stride + r] = hn::GetLane(hn::SumOfLanes(d, totals[r][t])) + behind[r][t];
  }
}

template <Packing packing, int rows, int tokens>
void dot_nibbles_with(const Matrix& m, std::int64_t first, const float* arranged,
                      std::int64_t token_stride, float* out, std::int64_t stride) {
  if (m.has_offsets) {
    dot_nibbles<packing, rows, tokens, true>(m, first, arranged, token_stride, out, stride);
  } else {
    dot_nibbles<packing, rows, tokens, false>(m, first, arranged, token_stride, out, stride);
  }
}

template <int rows, int tokens>
void dot_rows(const Matrix& m, std::int64_t first, const float* arranged, std::int64_t token_stride,
              float* out, std::int64_t stride) {
  if (m.packing == Packing::int8) {
    dot_bytes<Packing::int8, rows, tokens>(m, first, arranged, token_stride, out, stride);
  } else if (m.packing == Packing::fp8) {
    dot_bytes<Packing::fp8, rows, tokens>(m, first, arranged, token_stride, out, stride);
  } else if (m.packing == Packing::fp4) {
    dot_nibbles_with<Packing::fp4, rows, tokens>(m, first, arranged, token_stride, out, stride);
  } else {
    dot_nibbles_with<Packing::int4, rows, tokens>(m, first, arranged, token_stride, out, stride);
  }
}

template <int tokens>
void dot_tokens(const Matrix& m, std::int64_t first, std::int64_t rows, const float* arranged,
                std::int64_t token_stride, float* out, std::int64_t stride) {
  constexpr int at_once = 4;  // activations of several tokens come from the second-level cache
  std::int64_t r = 0;
  for (; r + at_once <= rows; r += at_once)
    dot_rows<at_once, tokens>(m, first + r, arranged, token_stride, out + r, stride);
  for (; r < rows; ++r) dot_rows<1, tokens>(m, first + r, arranged, token_stride, out + r, stride);
}

void packed_dot_any(const Matrix& m, std::int64_t first, std::int64_t rows, const float* arranged,
                    std::int64_t token_stride, std::int64_t tokens, float* out,
                    std::int64_t stride) {
  switch (tokens) {
    case 1:
      return dot_tokens<1>(m, first, rows, arranged, token_stride, out, stride);
    case 2:
      return dot_tokens<2>(m, first, rows, arranged, token_stride, out, stride);
    case 3:
      return dot_tokens<3>(m, first, rows, arranged, token_stride, out, stride);
    default:
      return dot_tokens<4>(m, first, rows, arranged, token_stride, out, stride);
  }
}

std::int64_t arranged_size_any(const Matrix& m) {
  if (!in_nibbles(m.packing)) return m.in_features + m.groups();
  return m.in_features / masks * (masks + 1);
}

void arrange_any(const Matrix& m, const float* x, float* to) {
  if (!in_nibbles(m.packing)) {
    std::copy(x, x + m.in_features, to);
    for (std::int64_t g = 0; g < m.groups(); ++g) {
      float sum = 0;
      for (std::int64_t i = g * m.group; i < (g + 1) * m.group; ++i) sum += x[i];
      to[m.in_features + g] = sum;
    }
    return;
  }
  const Floats d;
  const Four d4;
  std::int64_t i = 0;
  for (; i + block_inputs(d) <= m.in_features; i += block_inputs(d))
    to = arrange_block(d, x + i, to);
  for (; i < m.in_features; i += block_inputs(d4)) to = arrange_block(d4, x + i, to);
}

/// Codes of a row of int4 or fp4 as int8, in the order of the inputs.
void unpack_nibbles(Packing packing, const std::byte* words, std::int64_t count, std::byte* codes) {
  const auto& code_of_bits = packing == Packing::fp4 ? nibble_codes<Packing::fp4, std::int8_t>
                                                     : nibble_codes<Packing::int4, std::int8_t>;
  for (std::int64_t i = 0; i < count; i += masks, words += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, words, sizeof word);
    for (int p = 0; p < masks; ++p)
      codes[i + input_of(p)] = static_cast<std::byte>(code_of_bits[word >> (4 * p) & 15U]);
  }
}

/// out = codes * scale + offset.
template <Packing packing>
void widen(const std::byte* codes, std::int64_t count, float scale, float offset, float* out) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto code = byte_codes<packing>(d, codes + i);
    hn::StoreU(hn::MulAdd(code, hn::Set(d, scale), hn::Set(d, offset)), d, out + i);
  }
  const hn::CappedTag<float, 1> d1;
  for (; i < count; ++i) {
    const auto code = byte_codes<packing>(d1, codes + i);
    out[i] = hn::GetLane(hn::MulAdd(code, hn::Set(d1, scale), hn::Set(d1, offset)));
  }
}

void unpack_row_any(const Matrix& m, std::int64_t row, float* out) {
  const std::byte* codes = m.data + row * m.row_bytes();
  constexpr std::int64_t piece = 128;
  std::byte unpacked[piece];
  for (std::int64_t g = 0; g < m.groups(); ++g) {
    const float scale = m.scales()[row * m.groups() + g];
    const float offset = m.has_offsets ? m.offsets()[row * m.groups() + g] : 0.0F;
    const std::int64_t end = (g + 1) * m.group;
    if (!in_nibbles(m.packing)) {
      const auto widen_group =
          m.packing == Packing::fp8 ? widen<Packing::fp8> : widen<Packing::int8>;
      widen_group(codes + g * m.group, m.group, scale, offset, out + g * m.group);
      continue;
    }
    for (std::int64_t i = g * m.group; i < end; i += piece) {
      const std::int64_t count = std::min(piece, end - i);
      unpack_nibbles(m.packing, codes + i / 2, count, unpacked);
      widen<Packing::int8>(unpacked, count, scale, offset, out + i);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(packed_dot_any);
HWY_EXPORT(arranged_size_any);
HWY_EXPORT(arrange_any);
HWY_EXPORT(unpack_row_any);

std::int64_t arranged_size(const Matrix& packed) {
  return HWY_DYNAMIC_DISPATCH(arranged_size_any)(packed);
}

void arrange_inputs(const Matrix& packed, const float* x, std::int64_t tokens, float* arranged) {
  const std::int64_t size = arranged_size(packed);
  thread_local std::vector<float> ordered;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float* inputs = x + t * packed.in_features;
    if (packed.has_order) {
      ordered.resize(static_cast<std::size_t>(packed.in_features));
      for (std::int64_t k = 0; k < packed.in_features; ++k)
        ordered[static_cast<std::size_t>(k)] = inputs[packed.order()[k]];
      inputs = ordered.data();
    }
    HWY_DYNAMIC_DISPATCH(arrange_any)(packed, inputs, arranged + t * size);
  }
}

void packed_dot(const Matrix& packed, std::int64_t first, std::int64_t rows, const float* arranged,
                std::int64_t tokens, float* out, std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(packed_dot_any)
  (packed, first, rows, arranged, arranged_size(packed), tokens, out, stride);
}

void unpack_rows(const Matrix& packed, std::int64_t first, std::int64_t rows, float* out) {
  thread_local std::vector<float> ordered;
  ordered.resize(packed.has_order ? static_cast<std::size_t>(packed.in_features) : 0);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = out + r * packed.in_features;
    HWY_DYNAMIC_DISPATCH(unpack_row_any)
    (packed, first + r, packed.has_order ? ordered.data() : row);
    for (std::int64_t k = 0; packed.has_order && k < packed.in_features; ++k)
      row[packed.order()[k]] = ordered[static_cast<std::size_t>(k)];
  }
}

}  // namespace topkv
#endif
