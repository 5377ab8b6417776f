// Packed weights written and read by the layout that src/core/math/matrix.h describes, bit by bit,
// sharing no code with what packs and multiplies them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "src/core/math/matrix.h"
#include "src/device/compute_device.h"

namespace packed_case {

struct Case {
  topkv::Packing packing = topkv::Packing::int8;
  std::int64_t out = 0;
  std::int64_t in = 0;
  std::int64_t group = 0;
  bool offsets = false;
  bool order = false;
};

/// Packings with groups of every kind: odd sizes, groups that take every width of load, whole rows.
inline std::vector<Case> cases() {
  using topkv::Packing;
  return {{Packing::int8, 1, 1, 1, false},           {Packing::int8, 7, 13, 13, false},
          {Packing::int8, 33, 37, 37, true},         {Packing::int8, 129, 384, 384, false},
          {Packing::int8, 50, 1000, 1000, true},     {Packing::int8, 19, 96, 16, true},
          {Packing::int8, 40, 224, 32, false},       {Packing::int8, 17, 256, 64, true},
          {Packing::int4, 1, 32, 32, true},          {Packing::int4, 3, 32, 32, false},
          {Packing::int4, 31, 160, 32, true},        {Packing::int4, 130, 192, 64, true},
          {Packing::int4, 65, 192, 64, false},       {Packing::int4, 97, 384, 128, true},
          {Packing::int4, 16, 1024, 128, false},     {Packing::int4, 45, 1024, 256, true},
          {Packing::int4, 20, 96, 96, true},         {Packing::int4, 300, 512, 512, false},
          {Packing::int4, 33, 384, 192, true},       {Packing::int4, 9, 288, 96, false},
          {Packing::int4, 21, 640, 160, true},       {Packing::int4, 5, 160, 160, true},
          {Packing::int4, 40, 384, 128, true, true}, {Packing::int4, 33, 160, 32, false, true},
          {Packing::int8, 24, 192, 64, true, true},  {Packing::fp8, 33, 37, 37, false},
          {Packing::fp8, 129, 384, 128, false},      {Packing::fp8, 19, 96, 16, false},
          {Packing::fp8, 40, 224, 32, false},        {Packing::fp8, 17, 256, 64, false},
          {Packing::fp8, 50, 1000, 1000, false},     {Packing::fp8, 24, 192, 64, false, true},
          {Packing::fp4, 1, 32, 32, false},          {Packing::fp4, 31, 160, 32, false},
          {Packing::fp4, 97, 384, 32, false},        {Packing::fp4, 65, 192, 64, false},
          {Packing::fp4, 33, 160, 32, false, true}};
}

inline const char* name_of(topkv::Packing packing) {
  switch (packing) {
    case topkv::Packing::int4:
      return "int4";
    case topkv::Packing::fp8:
      return "fp8";
    case topkv::Packing::fp4:
      return "fp4";
    default:
      return "int8";
  }
}

struct Packed {
  topkv::Matrix matrix;  // data is the caller's to set
  std::vector<std::byte> block;
  std::vector<double> values;  // [out, in]
  std::vector<double> sizes;   // |code * scale| + |offset|
};

inline std::int64_t rounded(std::int64_t bytes, std::int64_t step) {
  return (bytes + step - 1) / step * step;
}

struct Layout {
  std::int64_t row = 0;
  std::int64_t scales = 0;
  std::int64_t offsets = 0;
  std::int64_t order = 0;
};

inline Layout layout_of(const Case& of) {
  Layout at;
  const bool nibbles = of.packing == topkv::Packing::int4 || of.packing == topkv::Packing::fp4;
  at.row = rounded(nibbles ? of.in / 2 : of.in, 16);
  at.scales = rounded(of.out * at.row, 256);
  const std::int64_t factors = rounded(of.out * (of.in / of.group) * 4 + 64, 256);
  at.offsets = at.scales + factors;
  at.order = at.offsets + (of.offsets ? factors : 0);
  return at;
}

/// What topkv::Packing::fp8 has for a byte: 1/256 of OCP's E4M3 (FP8 formats, table 1).
inline double fp8_code(unsigned byte) {
  const unsigned exponent = byte >> 3 & 15U;
  const double fraction = (byte & 7U) / 8.0;
  const double size = exponent == 0 ? std::ldexp(fraction, -6)
                                    : std::ldexp(1 + fraction, static_cast<int>(exponent) - 7);
  return (byte >= 128 ? -size : size) / 256;
}

/// What topkv::Packing::fp4 has for four bits: twice OCP's E2M1.
inline double fp4_code(unsigned nibble) {
  constexpr double sizes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (nibble >= 8 ? -2 : 2) * sizes[nibble & 7U];
}

inline Packed random_packed(const Case& of, unsigned seed) {
  std::mt19937 random(seed);
  const bool fp4 = of.packing == topkv::Packing::fp4;
  const bool nibbles = of.packing == topkv::Packing::int4 || fp4;
  const bool fp8 = of.packing == topkv::Packing::fp8;
  std::uniform_int_distribution<int> code(nibbles ? -8 : -128, nibbles ? 7 : 127);
  std::normal_distribution<float> normal;
  Packed packed;
  packed.matrix = {nullptr,    topkv::DType::bf16, of.out,     of.in,
                   of.packing, of.group,           of.offsets, of.order};
  packed.block.assign(static_cast<std::size_t>(packed.matrix.bytes()), std::byte{0});
  const Layout at = layout_of(of);
  const auto put = [&](std::int64_t place, float value) {
    std::memcpy(packed.block.data() + place, &value, sizeof value);
  };
  std::vector<std::int32_t> order(static_cast<std::size_t>(of.in));
  std::iota(order.begin(), order.end(), 0);
  if (of.order) {
    std::ranges::shuffle(order, random);
    std::memcpy(packed.block.data() + at.order, order.data(), order.size() * 4);
  }
  packed.values.resize(static_cast<std::size_t>(of.out * of.in));
  packed.sizes.resize(packed.values.size());
  for (std::int64_t r = 0; r < of.out; ++r) {
    float scale = 0;
    float offset = 0;
    for (std::int64_t i = 0; i < of.in; ++i) {
      if (i % of.group == 0) {
        const std::int64_t factor = 4 * (r * (of.in / of.group) + i / of.group);
        scale = normal(random) * 0.01F;
        put(at.scales + factor, scale);
        if (of.offsets) {
          offset = normal(random) * 0.05F;
          put(at.offsets + factor, offset);
        }
      }
      int c = code(random);
      if (fp8 && (c & 127) == 127) c ^= 1;  // 127 and 255 are no numbers
      const double value = fp8   ? fp8_code(static_cast<unsigned>(c) & 255U)
                           : fp4 ? fp4_code(static_cast<unsigned>(c + 8))
                                 : c;
      if (nibbles) {
        const std::int64_t bit = i % 8 / 2 * 4 + i % 2 * 16;
        packed.block[static_cast<std::size_t>(r * at.row + i / 8 * 4 + bit / 8)] |=
            static_cast<std::byte>((c + 8) << (bit % 8));
      } else {
        packed.block[static_cast<std::size_t>(r * at.row + i)] = static_cast<std::byte>(c);
      }
      const auto place = static_cast<std::size_t>(r * of.in + order[static_cast<std::size_t>(i)]);
      packed.values[place] = double{scale} * value + offset;
      packed.sizes[place] = std::abs(double{scale} * value) + std::abs(double{offset});
    }
  }
  return packed;
}

/// The product of a row with x, and what its rounding is measured by.
struct RowProduct {
  double sum = 0;
  double size = 0;     // of |x| times the sizes of weights
  double weights = 0;  // of these sizes
};

inline RowProduct row_product(const Packed& packed, std::int64_t row, const float* x) {
  RowProduct product;
  const std::int64_t in = packed.matrix.in_features;
  for (std::int64_t i = 0; i < in; ++i) {
    const auto at = static_cast<std::size_t>(row * in + i);
    product.sum += x[i] * packed.values[at];
    product.size += std::abs(x[i]) * packed.sizes[at];
    product.weights += packed.sizes[at];
  }
  return product;
}

/// Activations over 25 powers of two below the largest, which may be some times as large as asked
/// for.
inline std::vector<float> of_every_size(std::vector<float> x, float largest) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= std::ldexp(largest, -static_cast<int>(i % 25));
  return x;
}

inline float largest_of(const std::vector<float>& x) {
  float most = 0;
  for (const float value : x) most = std::max(most, std::abs(value));
  return most;
}

/// The values of a packed matrix in host memory whose inputs are in their own order.
inline std::vector<double> values_of(const topkv::Matrix& matrix) {
  const Case of{matrix.packing, matrix.out_features, matrix.in_features, matrix.group,
                matrix.has_offsets};
  const Layout at = layout_of(of);
  const auto get = [&](std::int64_t place) {
    float value = 0;
    std::memcpy(&value, matrix.data + place, sizeof value);
    return double{value};
  };
  std::vector<double> values;
  for (std::int64_t r = 0; r < of.out; ++r) {
    for (std::int64_t i = 0; i < of.in; ++i) {
      const std::int64_t factor = 4 * (r * (of.in / of.group) + i / of.group);
      double code = 0;
      if (of.packing == topkv::Packing::int4 || of.packing == topkv::Packing::fp4) {
        const std::int64_t bit = i % 8 / 2 * 4 + i % 2 * 16;
        const auto byte = static_cast<unsigned>(matrix.data[r * at.row + i / 8 * 4 + bit / 8]);
        const unsigned nibble = byte >> (bit % 8) & 15U;
        code = of.packing == topkv::Packing::fp4 ? fp4_code(nibble) : static_cast<int>(nibble) - 8;
      } else if (of.packing == topkv::Packing::fp8) {
        code = fp8_code(static_cast<unsigned>(matrix.data[r * at.row + i]));
      } else {
        code = static_cast<std::int8_t>(matrix.data[r * at.row + i]);
      }
      values.push_back(get(at.scales + factor) * code +
                       (of.offsets ? get(at.offsets + factor) : 0.0));
    }
  }
  return values;
}

/// The block in a device's memory.
inline topkv::Buffer put(topkv::ComputeDevice& device, Packed& packed) {
  const auto bytes = static_cast<std::int64_t>(packed.block.size());
  topkv::Buffer buffer = device.allocate(bytes, "test");
  device.copy_in(packed.block.data(), bytes, buffer.data());
  packed.matrix.data = buffer.data();
  return buffer;
}

}  // namespace packed_case
