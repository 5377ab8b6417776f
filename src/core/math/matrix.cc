#include "src/core/math/matrix.h"

#include <cstring>

namespace topkv {
namespace {

// Vector loads of scales may go beyond the last ones.
constexpr std::int64_t slack = 64;

std::int64_t round_up(std::int64_t bytes, std::int64_t step) {
  return (bytes + step - 1) / step * step;
}

std::int64_t factors_bytes(const Matrix& matrix) {
  return round_up(matrix.out_features * matrix.groups() * bytes_of(DType::f32) + slack, 256);
}

/// code(j): of input j of 8, without a sign.
template <class Code>
void put_word(const Code& code, std::byte* to) {
  std::uint32_t word = 0;
  for (std::uint32_t j = 0; j < 8; ++j) word |= code(j) << (j / 2 * 4 + j % 2 * 16);
  std::memcpy(to, &word, sizeof word);
}

}  // namespace

std::int64_t Matrix::row_bytes() const {
  switch (packing) {
    case Packing::int8:
    case Packing::fp8:
      return round_up(in_features, 16);
    case Packing::int4:
    case Packing::fp4:
      return round_up(in_features / 2, 16);
    default:
      return in_features * bytes_of(dtype);
  }
}

std::int64_t Matrix::scales_at() const { return round_up(out_features * row_bytes(), 256); }

std::int64_t Matrix::offsets_at() const { return scales_at() + factors_bytes(*this); }

std::int64_t Matrix::order_at() const {
  return offsets_at() + (has_offsets ? factors_bytes(*this) : 0);
}

std::int64_t Matrix::bytes() const {
  if (!packed()) return out_features * row_bytes();
  return order_at() + (has_order ? round_up(in_features * std::int64_t{4}, 256) : 0);
}

std::int64_t group_step(Packing packing) { return in_nibbles(packing) ? 32 : 16; }

void pack_int4(const std::int8_t* codes, std::int64_t count, std::byte* to) {
  for (std::int64_t i = 0; i < count; i += 8, to += 4)
    put_word([&](std::uint32_t j) { return static_cast<std::uint32_t>(codes[i + j] + 8); }, to);
}

void pack_nibbles(const std::uint8_t* codes, std::int64_t count, std::byte* to) {
  for (std::int64_t i = 0; i < count; i += 8, to += 4)
    put_word([&](std::uint32_t j) { return std::uint32_t{codes[i + j]}; }, to);
}

void unpack_nibbles(Packing packing, const std::byte* words, std::int64_t count,
                    std::int8_t* codes) {
  static constexpr std::int8_t of_bits[2][16] = {
      {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7},
      {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};
  const auto& code_of = of_bits[packing == Packing::fp4 ? 1 : 0];
  for (std::int64_t i = 0; i < count; i += 8, words += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, words, sizeof word);
    for (std::int64_t j = 0; j < 8; ++j)
      codes[i + j] = code_of[word >> (j / 2 * 4 + j % 2 * 16) & 15U];
  }
}

}  // namespace topkv
