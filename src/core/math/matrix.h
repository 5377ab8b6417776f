// A weight matrix as a device multiplies it: plain elements, or packed ones, codes of 8 or 4 bits
// with scales. Every quantised checkpoint, and every matrix quantised at load, is
// brought into one of these packings, so that devices know few of them and the forward pass none.
//
// A packed element is
//
//   scale[row, input / group] * code[row, input] (+ offset[row, input / group])
//
// code: -128 to 127 (int8), -8 to 7 (int4), the float of 8 bits that is 1/256 of what e4m3 has
// for the same bits (fp8: those of a float16 but for its last seven, so that widening is a shift),
// or twice what e2m1 has for them (fp4: 0, 1, 2, 3, 4, 6, 8, 12 and, with the fourth bit, less
// than 0; OCP Microscaling Formats 1.0, section 5.3.3). Scales and offsets are float32, so that
// those of any checkpoint (f16, bf16, e8m0, products of two) keep their value; codes that are
// floats have no offsets. In memory, one block:
//
//   codes    out_features rows of row_bytes() each, a multiple of 16: what lies behind the last
//            input of a row is 0
//   scales   [out_features, groups()], at scales_at()
//   offsets  the same, at offsets_at(), when has_offsets
//   order    int32 [in_features], at order_at(), when has_order: column k of the codes is that of
//            input order[k], so that inputs which share scales lie together
//
// int8 and fp8: a byte an input, in order. int4: 4 bytes for each 8 inputs, a little-endian word
// that has code + 8 of input 2i at bit 4i and of input 2i + 1 at bit 16 + 4i: so that masks leave
// pairs of neighbours in the halves of a word, which is what a GPU's matrix instructions take. fp4:
// the same with its four bits as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "topkv/types.h"

namespace topkv {

enum class Packing : std::uint8_t { none, int8, int4, fp8, fp4 };

/// Two codes to a byte, in words of eight.
constexpr bool in_nibbles(Packing packing) {
  return packing == Packing::int4 || packing == Packing::fp4;
}

/// [out_features, in_features], row-major; memory not owned. Plain elements may be unaligned; a
/// packed block is aligned to 256 bytes.
struct Matrix {
  const std::byte* data = nullptr;
  DType dtype = DType::bf16;  ///< of plain elements
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  Packing packing = Packing::none;
  std::int64_t group = 0;  ///< packed: consecutive inputs that share a scale; divides in_features
  bool has_offsets = false;
  bool has_order = false;

  bool packed() const { return packing != Packing::none; }
  /// Of the elements, or the codes, of a row.
  std::int64_t row_bytes() const;
  std::int64_t groups() const { return in_features / group; }
  /// Offsets into the block, in bytes.
  std::int64_t scales_at() const;
  std::int64_t offsets_at() const;
  std::int64_t order_at() const;
  const float* scales() const { return reinterpret_cast<const float*>(data + scales_at()); }
  /// Null: none.
  const float* offsets() const {
    return has_offsets ? reinterpret_cast<const float*>(data + offsets_at()) : nullptr;
  }
  /// Null: inputs are in their own order.
  const std::int32_t* order() const {
    return has_order ? reinterpret_cast<const std::int32_t*>(data + order_at()) : nullptr;
  }
  /// Of all of it.
  std::int64_t bytes() const;
};

/// A weight that meets inputs which others meet as well.
struct Product {
  Matrix weight;
  const float* bias = nullptr;  ///< [out_features], added to each token's; null: none
  float* out = nullptr;         ///< [tokens, out_features]
};

/// Matrices of one form, which differ in their values alone: those of experts. On a CUDA device
/// they lie behind each other, so that kernels find one by its number; on the host some may be
/// where they are in a mapped file. data and order are each one's own.
struct ExpertMatrices {
  Matrix form;  ///< of each; data: of the first
  std::vector<const std::byte*> data;
  std::int64_t stride = 0;  ///< bytes from one to the next; 0: there is no such number

  std::int64_t count() const { return static_cast<std::int64_t>(data.size()); }
  Matrix of(std::int64_t expert) const {
    Matrix matrix = form;
    matrix.data = data[static_cast<std::size_t>(expert)];
    return matrix;
  }
};

/// A weight of each expert, which meets inputs that others meet as well.
struct ExpertProduct {
  const ExpertMatrices* weights = nullptr;
  const float* biases = nullptr;  ///< [experts, out_features]; null: none
  float* out = nullptr;           ///< [rows, out_features]
};

/// Inputs of a group are a multiple of this: 32 for codes of 4 bits, else 16 unless a row is one
/// group.
std::int64_t group_step(Packing packing);

/// Rows of a packed matrix while they are made: codes [rows, row_bytes], zeroed; scales and offsets
/// [rows, groups], offsets null when the matrix has none.
struct PackedRows {
  std::byte* codes = nullptr;
  float* scales = nullptr;
  float* offsets = nullptr;
};

/// Puts codes of a row, -8 to 7, into int4's words. REQUIRES: count a multiple of 8.
void pack_int4(const std::int8_t* codes, std::int64_t count, std::byte* to);

/// Puts codes of 4 bits, 0 to 15, into such words. REQUIRES: count a multiple of 8.
void pack_nibbles(const std::uint8_t* codes, std::int64_t count, std::byte* to);

/// Codes of int4 or fp4 from such words: what their bits stand for. REQUIRES: likewise.
void unpack_nibbles(Packing packing, const std::byte* words, std::int64_t count,
                    std::int8_t* codes);

}  // namespace topkv
