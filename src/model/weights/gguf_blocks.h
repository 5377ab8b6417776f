// ggml's blocks of quantised elements, brought into topkv's packings (core/matrix.h) one by one.
//
// Values are kept: codes and scales as they are, scales of super-blocks multiplied out, which is
// exact in float32 (11 bits by 6 to 8). Offsets are what ggml takes from a value or adds to it;
// with int4, whose codes are less by 8 than ggml's, they are 8 * scale more, rounded to float32.
//
// Source: ggml's ggml-common.h (block_q4_0 and on) and ggml-quants.c (dequantize_row_q4_0 and on).
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/core/format/gguf_file.h"
#include "src/core/math/matrix.h"

namespace topkv {

struct BlockFormat {
  std::uint32_t type = 0;  ///< ggml's
  Packing packing = Packing::int8;
  std::int64_t group = 32;  ///< inputs that share a scale
  bool has_offsets = false;
  /// Unpacks one block: codes of its inputs (fp4: their four bits), scales and offsets of its
  /// groups. offsets: null without has_offsets.
  void (*read)(const std::byte* block, std::int8_t* codes, float* scales, float* offsets) = nullptr;
};

/// Null for a type that topkv does not unpack.
const BlockFormat* find_block_format(const GgmlType& type);

}  // namespace topkv
