#include "src/model/weights/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "src/core/math/convert.h"
#include "src/model/weights/gguf_grid_blocks.h"

namespace topkv {
namespace {

using Codes = std::int8_t*;

float half(const std::byte* from) {
  float value = 0;
  to_float(from, DType::f16, 1, &value);
  return value;
}

int byte(const std::byte* from, std::int64_t at) { return std::to_integer<int>(from[at]); }
int low(const std::byte* from, std::int64_t at) { return byte(from, at) & 15; }
int high(const std::byte* from, std::int64_t at) { return byte(from, at) >> 4; }

void put(Codes codes, std::int64_t at, int value) { codes[at] = static_cast<std::int8_t>(value); }

// Blocks of 32: nibble j has input j, and above it input j + 16.

void read_q4_0(const std::byte* block, Codes codes, float* scales, float* /*offsets*/) {
  scales[0] = half(block);
  for (int j = 0; j < 16; ++j) {
    put(codes, j, low(block + 2, j) - 8);
    put(codes, j + 16, high(block + 2, j) - 8);
  }
}

void read_q4_1(const std::byte* block, Codes codes, float* scales, float* offsets) {
  read_q4_0(block + 2, codes, scales, nullptr);
  scales[0] = half(block);
  offsets[0] = half(block + 2) + 8 * scales[0];
}

/// Four bits of each input, and a word with the fifth ones.
void read_five_bits(const std::byte* high_bits, const std::byte* nibbles, Codes codes, int less) {
  std::uint32_t fifth = 0;
  std::memcpy(&fifth, high_bits, sizeof fifth);
  for (int j = 0; j < 16; ++j) {
    put(codes, j, low(nibbles, j) + static_cast<int>(fifth >> j & 1U) * 16 - less);
    put(codes, j + 16, high(nibbles, j) + static_cast<int>(fifth >> (j + 16) & 1U) * 16 - less);
  }
}

void read_q5_0(const std::byte* block, Codes codes, float* scales, float* /*offsets*/) {
  scales[0] = half(block);
  read_five_bits(block + 2, block + 6, codes, 16);
}

void read_q5_1(const std::byte* block, Codes codes, float* scales, float* offsets) {
  scales[0] = half(block);
  offsets[0] = half(block + 2);
  read_five_bits(block + 4, block + 8, codes, 0);
}

void read_q8_0(const std::byte* block, Codes codes, float* scales, float* /*offsets*/) {
  scales[0] = half(block);
  std::memcpy(codes, block + 2, 32);
}

constexpr std::array<int, 16> iq4_values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                            1,    13,   25,  38,  53,  69,  89,  113};

void read_iq4(const std::byte* nibbles, Codes codes) {
  for (int j = 0; j < 16; ++j) {
    put(codes, j, iq4_values[static_cast<std::size_t>(low(nibbles, j))]);
    put(codes, j + 16, iq4_values[static_cast<std::size_t>(high(nibbles, j))]);
  }
}

void read_iq4_nl(const std::byte* block, Codes codes, float* scales, float* /*offsets*/) {
  scales[0] = half(block);
  read_iq4(block + 2, codes);
}

/// A power of 2 by its exponent, then e2m1's bits, whose codes are twice its values.
void read_mxfp4(const std::byte* block, Codes codes, float* scales, float* /*offsets*/) {
  scales[0] = std::ldexp(1.0F, byte(block, 0) - 128);
  for (int j = 0; j < 16; ++j) {
    put(codes, j, low(block + 1, j));
    put(codes, j + 16, high(block + 1, j));
  }
}

/// Four scales in e4m3 without a sign, then e2m1's bits of 16 inputs each.
void read_nvfp4(const std::byte* block, Codes codes, float* scales, float* /*offsets*/) {
  constexpr std::array<int, 8> twice_e2m1 = {0, 1, 2, 3, 4, 6, 8, 12};
  const auto code = [&](int bits) {
    const int value = twice_e2m1[static_cast<std::size_t>(bits & 7)];
    return bits < 8 ? value : -value;
  };
  for (int g = 0; g < 4; ++g) {
    const int bits = byte(block, g);
    const int exponent = bits >> 3 & 15;
    const auto fraction = static_cast<float>(bits & 7);
    scales[g] =
        exponent == 0 ? std::ldexp(fraction, -10) : std::ldexp(1 + fraction / 8, exponent - 8);
    if (bits == 0x7f) scales[g] = 0;  // e4m3's NaN, as ggml takes it
    const std::byte* const nibbles = block + 4 + 8 * g;
    for (int j = 0; j < 8; ++j) {
      put(codes, 16 * g + j, code(low(nibbles, j)));
      put(codes, 16 * g + j + 8, code(high(nibbles, j)));
    }
  }
}

// Super-blocks of 256.

// Three values, -1 to 1, with one scale. It is that of each group of 32, so that codes are int4's.

void read_tq2_0(const std::byte* block, Codes codes, float* scales, float* /*offsets*/) {
  std::fill_n(scales, 8, half(block + 64));
  for (int i = 0; i < 256; ++i)
    put(codes, i, (byte(block, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3) - 1);
}

/// Five inputs a byte, four in the last: the byte by a power of 3, times 3, has the value above 8
/// bits.
void read_tq1_0(const std::byte* block, Codes codes, float* scales, float* /*offsets*/) {
  constexpr std::array<int, 5> powers = {1, 3, 9, 27, 81};
  std::fill_n(scales, 8, half(block + 52));
  const auto value = [&](std::int64_t at, int power) {
    const int turned = byte(block, at) * powers[static_cast<std::size_t>(power)] & 255;
    return (turned * 3 >> 8) - 1;
  };
  for (int i = 0; i < 160; ++i) put(codes, i, value(i % 32, i / 32));
  for (int i = 0; i < 80; ++i) put(codes, 160 + i, value(32 + i % 16, i / 16));
  for (int i = 0; i < 16; ++i) put(codes, 240 + i, value(48 + i % 4, i / 4));
}

void read_iq4_xs(const std::byte* block, Codes codes, float* scales, float* /*offsets*/) {
  const float d = half(block);
  const int high_bits = byte(block, 2) | byte(block, 3) << 8;
  for (int g = 0; g < 8; ++g) {
    const int four = byte(block + 4, g / 2) >> (4 * (g % 2)) & 15;
    scales[g] = d * static_cast<float>((four | (high_bits >> (2 * g) & 3) << 4) - 32);
    read_iq4(block + 8 + 16 * g, codes + 32 * g);
  }
}

void read_q2_k(const std::byte* block, Codes codes, float* scales, float* offsets) {
  const float d = half(block + 80);
  const float least = half(block + 82);
  for (int g = 0; g < 16; ++g) {
    scales[g] = d * static_cast<float>(low(block, g));
    offsets[g] = -least * static_cast<float>(high(block, g));
  }
  for (int i = 0; i < 256; ++i) {
    const int at = i / 128 * 32 + i % 32;
    put(codes, i, byte(block + 16, at) >> (i % 128 / 32 * 2) & 3);
  }
}

void read_q3_k(const std::byte* block, Codes codes, float* scales, float* /*offsets*/) {
  const std::byte* twos = block + 32;
  const std::byte* six = block + 96;
  const float d = half(block + 108);
  for (int g = 0; g < 16; ++g) {
    const int four = g < 8 ? low(six, g) : high(six, g - 8);
    const int two = byte(six, 8 + g % 4) >> (2 * (g / 4)) & 3;
    scales[g] = d * static_cast<float>((four | two << 4) - 32);
  }
  for (int i = 0; i < 256; ++i) {
    const int two = byte(twos, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
    const int third = byte(block, i % 32) >> (i / 32) & 1;
    put(codes, i, two - (third == 1 ? 0 : 4));
  }
}

/// Scales and mins of q4_K and q5_K: 8 of 6 bits each in 12 bytes.
void read_six_bits(const std::byte* block, float* scales, float* offsets) {
  const float d = half(block);
  const float least = half(block + 2);
  const std::byte* packed = block + 4;
  for (int g = 0; g < 8; ++g) {
    int scale = 0;
    int min = 0;
    if (g < 4) {
      scale = byte(packed, g) & 63;
      min = byte(packed, g + 4) & 63;
    } else {
      scale = low(packed, g + 4) | (byte(packed, g - 4) >> 6) << 4;
      min = high(packed, g + 4) | (byte(packed, g) >> 6) << 4;
    }
    scales[g] = d * static_cast<float>(scale);
    offsets[g] = -least * static_cast<float>(min);
  }
}

void read_q4_k(const std::byte* block, Codes codes, float* scales, float* offsets) {
  read_six_bits(block, scales, offsets);
  for (int g = 0; g < 8; ++g) offsets[g] += 8 * scales[g];
  for (int i = 0; i < 256; ++i) {
    const int at = i / 64 * 32 + i % 32;
    put(codes, i, (i % 64 < 32 ? low(block + 16, at) : high(block + 16, at)) - 8);
  }
}

void read_q5_k(const std::byte* block, Codes codes, float* scales, float* offsets) {
  read_six_bits(block, scales, offsets);
  for (int i = 0; i < 256; ++i) {
    const int at = i / 64 * 32 + i % 32;
    const int four = i % 64 < 32 ? low(block + 48, at) : high(block + 48, at);
    put(codes, i, four | (byte(block + 16, i % 32) >> (i / 32) & 1) << 4);
  }
}

void read_q6_k(const std::byte* block, Codes codes, float* scales, float* /*offsets*/) {
  const float d = half(block + 208);
  for (int g = 0; g < 16; ++g)
    scales[g] = d * static_cast<float>(std::to_integer<std::int8_t>(block[192 + g]));
  for (int i = 0; i < 256; ++i) {
    const int part = i % 128;  // of the 128 that share 64 bytes of nibbles and 32 of pairs
    const int at = i / 128 * 64 + part % 64;
    const int four = part < 64 ? low(block, at) : high(block, at);
    const int two = byte(block + 128, i / 128 * 32 + part % 32) >> (part / 32 * 2) & 3;
    put(codes, i, (four | two << 4) - 32);
  }
}

constexpr std::array<BlockFormat, 23> formats = {
    {{2, Packing::int4, 32, false, read_q4_0},     {3, Packing::int4, 32, true, read_q4_1},
     {6, Packing::int8, 32, false, read_q5_0},     {7, Packing::int8, 32, true, read_q5_1},
     {8, Packing::int8, 32, false, read_q8_0},     {10, Packing::int8, 16, true, read_q2_k},
     {11, Packing::int8, 16, false, read_q3_k},    {12, Packing::int4, 32, true, read_q4_k},
     {13, Packing::int8, 32, true, read_q5_k},     {14, Packing::int8, 16, false, read_q6_k},
     {16, Packing::int8, 32, false, read_iq2_xxs}, {17, Packing::int8, 16, false, read_iq2_xs},
     {18, Packing::int8, 32, false, read_iq3_xxs}, {19, Packing::int8, 32, false, read_iq1_s},
     {20, Packing::int8, 32, false, read_iq4_nl},  {21, Packing::int8, 32, false, read_iq3_s},
     {22, Packing::int8, 16, false, read_iq2_s},   {23, Packing::int8, 32, false, read_iq4_xs},
     {29, Packing::int8, 16, false, read_iq1_m},   {34, Packing::int4, 32, false, read_tq1_0},
     {35, Packing::int4, 32, false, read_tq2_0},   {39, Packing::fp4, 32, false, read_mxfp4},
     {40, Packing::int8, 16, false, read_nvfp4}}};

}  // namespace

const BlockFormat* find_block_format(const GgmlType& type) {
  const auto* const found = std::ranges::find(formats, type.id, &BlockFormat::type);
  return found == formats.end() ? nullptr : &*found;
}

}  // namespace topkv
