#include "src/core/math/packed_product.h"

#include <algorithm>
#include <vector>

#include "src/core/math/nibble_product.h"
#include "src/core/math/packed_rows.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/core/math/packed_product.cc"
#include <hwy/foreach_target.h>
#include "src/core/math/simd.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace topkv {
namespace HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;

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
void dot_bytes(const Matrix& m, std::int64_t first, const float* x, std::int64_t token_stride,
               float* out, std::int64_t stride) {
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

void packed_dot_any(const Matrix& m, std::int64_t first, std::int64_t count, const float* arranged,
                    std::int64_t token_stride, std::int64_t tokens, float* out,
                    std::int64_t stride) {
  each_rows(count, tokens, [&]<int rows, int at_once>(std::int64_t r) HWY_ATTR {
    const auto dot = m.packing == Packing::int8 ? dot_bytes<Packing::int8, rows, at_once>
                                                : dot_bytes<Packing::fp8, rows, at_once>;
    dot(m, first + r, arranged, token_stride, out + r, stride);
  });
}

void arrange_any(const Matrix& m, const float* x, float* to) {
  std::copy(x, x + m.in_features, to);
  for (std::int64_t g = 0; g < m.groups(); ++g) {
    float sum = 0;
    for (std::int64_t i = g * m.group; i < (g + 1) * m.group; ++i) sum += x[i];
    to[m.in_features + g] = sum;
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
  std::int8_t unpacked[piece];
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
      widen<Packing::int8>(reinterpret_cast<const std::byte*>(unpacked), count, scale, offset,
                           out + i);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace topkv
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace topkv {

HWY_EXPORT(packed_dot_any);
HWY_EXPORT(arrange_any);
HWY_EXPORT(unpack_row_any);

std::int64_t arranged_size(const Matrix& packed) { return packed.in_features + packed.groups(); }

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
    if (in_nibbles(packed.packing)) {
      arrange_for_nibbles(packed, inputs, arranged + t * size);
    } else {
      HWY_DYNAMIC_DISPATCH(arrange_any)(packed, inputs, arranged + t * size);
    }
  }
}

void packed_dot(const Matrix& packed, std::int64_t first, std::int64_t rows, const float* arranged,
                std::int64_t tokens, float* out, std::int64_t stride) {
  constexpr std::int64_t tokens_at_once = 4;
  // Rows that stay in the first-level cache for the next tokens.
  const std::int64_t near =
      std::max<std::int64_t>(4, (std::int64_t{16} << 10) / packed.row_bytes() / 4 * 4);
  const std::int64_t rows_at_once = tokens <= tokens_at_once ? rows : near;
  for (std::int64_t r = 0; r < rows; r += rows_at_once) {
    const std::int64_t some_rows = std::min(rows_at_once, rows - r);
    for (std::int64_t t = 0; t < tokens; t += tokens_at_once) {
      const std::int64_t some = std::min(tokens_at_once, tokens - t);
      const float* x = arranged + t * arranged_size(packed);
      float* to = out + t * stride + r;
      if (in_nibbles(packed.packing)) {
        nibble_dot(packed, first + r, some_rows, x, some, to, stride);
      } else {
        HWY_DYNAMIC_DISPATCH(packed_dot_any)
        (packed, first + r, some_rows, x, arranged_size(packed), some, to, stride);
      }
    }
  }
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
