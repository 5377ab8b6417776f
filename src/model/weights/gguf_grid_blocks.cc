#include "src/model/weights/gguf_grid_blocks.h"

#include <array>
#include <bit>
#include <cstring>

#include "src/core/math/convert.h"
#include "src/model/weights/gguf_grids.h"

namespace topkv {
namespace {

float half_at(const std::byte* from) {
  float value = 0;
  to_float(from, DType::f16, 1, &value);
  return value;
}

std::uint32_t byte_at(const std::byte* from, int at) {
  return std::to_integer<std::uint32_t>(from[at]);
}

template <class T>
std::uint32_t number_at(const std::byte* from, int index) {
  T value;
  std::memcpy(&value, from + index * static_cast<int>(sizeof value), sizeof value);
  return value;
}

// Values of a point's elements.
constexpr std::array<int, 4> iq2_values = {8, 25, 43, 0};  // no point has the last
constexpr std::array<int, 8> iq3_xxs_values = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr std::array<int, 8> iq3_s_values = {1, 3, 5, 7, 9, 11, 13, 15};

/// Eight elements; bit j of signs: element j is less than 0.
void put_iq2(std::uint16_t point, std::uint32_t signs, std::int8_t* codes) {
  for (unsigned j = 0; j < 8; ++j) {
    const int value = iq2_values[point >> (2 * j) & 3U];
    codes[j] = static_cast<std::int8_t>((signs >> j & 1U) != 0 ? -value : value);
  }
}

/// Eight elements, of two points.
void put_iq3(std::uint16_t first, std::uint16_t second, const std::array<int, 8>& values,
             std::uint32_t signs, std::int8_t* codes) {
  for (unsigned j = 0; j < 8; ++j) {
    const int value = values[(j < 4 ? first : second) >> (3 * (j % 4)) & 7U];
    codes[j] = static_cast<std::int8_t>((signs >> j & 1U) != 0 ? -value : value);
  }
}

/// Seven signs, and an eighth that makes the number of those below 0 even.
std::uint32_t even_signs(std::uint32_t seven) {
  return seven | static_cast<std::uint32_t>(std::popcount(seven) & 1) << 7U;
}

/// Eight elements of iq1: -1, 0 or 1, and an eighth more or less, in eighths.
void put_iq1(std::uint16_t point, bool is_less, std::int8_t* codes) {
  for (unsigned j = 0; j < 8; ++j) {
    const int value = static_cast<int>(point >> (2 * j) & 3U) - 1;
    codes[j] = static_cast<std::int8_t>(8 * value + (is_less ? -1 : 1));
  }
}

float odd(std::uint32_t scale) { return static_cast<float>(2 * scale + 1); }

}  // namespace

void read_iq2_xxs(const std::byte* block, std::int8_t* codes, float* scales, float* /*offsets*/) {
  const float d = half_at(block);
  for (int g = 0; g < 8; ++g) {
    const std::byte* const numbers = block + 2 + 8 * g;
    const std::uint32_t signs = number_at<std::uint32_t>(numbers, 1);
    scales[g] = d * odd(signs >> 28U) / 8;
    for (int l = 0; l < 4; ++l) {
      put_iq2(gguf_grid_iq2_xxs[byte_at(numbers, l)], even_signs(signs >> (7 * l) & 127U),
              codes + 32 * g + 8 * l);
    }
  }
}

void read_iq2_xs(const std::byte* block, std::int8_t* codes, float* scales, float* /*offsets*/) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) {
    const std::uint32_t number = number_at<std::uint16_t>(block + 2, i);
    put_iq2(gguf_grid_iq2_xs[number & 511U], even_signs(number >> 9U), codes + 8 * i);
  }
  for (int g = 0; g < 16; ++g)
    scales[g] = d * odd(byte_at(block + 66, g / 2) >> (4 * (g % 2)) & 15U) / 8;
}

void read_iq2_s(const std::byte* block, std::int8_t* codes, float* scales, float* /*offsets*/) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) {
    const std::uint32_t high = byte_at(block + 66, i / 4) >> (2 * (i % 4)) & 3U;
    put_iq2(gguf_grid_iq2_s[byte_at(block + 2, i) | high << 8U], byte_at(block + 34, i),
            codes + 8 * i);
  }
  for (int g = 0; g < 16; ++g)
    scales[g] = d * odd(byte_at(block + 74, g / 2) >> (4 * (g % 2)) & 15U) / 8;
}

void read_iq3_xxs(const std::byte* block, std::int8_t* codes, float* scales, float* /*offsets*/) {
  const float d = half_at(block);
  for (int g = 0; g < 8; ++g) {
    const std::uint32_t signs = number_at<std::uint32_t>(block + 66, g);
    scales[g] = d * odd(signs >> 28U) / 4;
    for (int l = 0; l < 4; ++l) {
      const std::byte* const numbers = block + 2 + 8 * g + 2 * l;
      put_iq3(gguf_grid_iq3_xxs[byte_at(numbers, 0)], gguf_grid_iq3_xxs[byte_at(numbers, 1)],
              iq3_xxs_values, even_signs(signs >> (7 * l) & 127U), codes + 32 * g + 8 * l);
    }
  }
}

void read_iq3_s(const std::byte* block, std::int8_t* codes, float* scales, float* /*offsets*/) {
  const float d = half_at(block);
  const auto point = [&](int i) {
    const std::uint32_t high = byte_at(block + 66, i / 8) >> (i % 8) & 1U;
    return gguf_grid_iq3_s[byte_at(block + 2, i) | high << 8U];
  };
  for (int i = 0; i < 32; ++i)
    put_iq3(point(2 * i), point(2 * i + 1), iq3_s_values, byte_at(block + 74, i), codes + 8 * i);
  for (int g = 0; g < 8; ++g)
    scales[g] = d * odd(byte_at(block + 106, g / 2) >> (4 * (g % 2)) & 15U);
}

void read_iq1_s(const std::byte* block, std::int8_t* codes, float* scales, float* /*offsets*/) {
  const float d = half_at(block);
  for (int g = 0; g < 8; ++g) {
    const std::uint32_t high = number_at<std::uint16_t>(block + 34, g);
    scales[g] = d * odd(high >> 12U & 7U) / 8;
    for (int l = 0; l < 4; ++l) {
      const std::uint32_t number = byte_at(block + 2, 4 * g + l) | (high >> (3 * l) & 7U) << 8U;
      put_iq1(gguf_grid_iq1[number], (high & 0x8000U) != 0, codes + 32 * g + 8 * l);
    }
  }
}

void read_iq1_m(const std::byte* block, std::int8_t* codes, float* scales, float* /*offsets*/) {
  // Each of four words has a fourth of the block's scale above four groups' scales.
  const std::byte* const words = block + 48;
  std::uint16_t bits = 0;
  for (int w = 0; w < 4; ++w)
    bits =
        static_cast<std::uint16_t>(bits | (number_at<std::uint16_t>(words, w) >> 12U) << (4 * w));
  const float d = half_at(reinterpret_cast<const std::byte*>(&bits));
  for (int g = 0; g < 16; ++g) {
    scales[g] = d * odd(number_at<std::uint16_t>(words, g / 4) >> (3 * (g % 4)) & 7U) / 8;
    for (int l = 0; l < 2; ++l) {
      const std::uint32_t high = byte_at(block + 32, g) >> (4 * l) & 15U;
      const std::uint32_t number = byte_at(block, 2 * g + l) | (high & 7U) << 8U;
      put_iq1(gguf_grid_iq1[number], (high & 8U) != 0, codes + 16 * g + 8 * l);
    }
  }
}

}  // namespace topkv
