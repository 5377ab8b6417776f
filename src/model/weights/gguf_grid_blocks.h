// Blocks of ggml's types that name points of a grid: as BlockFormat::read (gguf_blocks.h), of 256
// inputs each. None has offsets; codes and scales keep all values.
//
// Source: ggml's ggml-common.h (block_iq1_s and on) and ggml-quants.c (dequantize_row_iq1_s and
// on).
#pragma once

#include <cstddef>
#include <cstdint>

namespace topkv {

// Groups of 32.
void read_iq2_xxs(const std::byte* block, std::int8_t* codes, float* scales, float* offsets);
void read_iq3_xxs(const std::byte* block, std::int8_t* codes, float* scales, float* offsets);
void read_iq3_s(const std::byte* block, std::int8_t* codes, float* scales, float* offsets);
void read_iq1_s(const std::byte* block, std::int8_t* codes, float* scales, float* offsets);
// Groups of 16.
void read_iq2_xs(const std::byte* block, std::int8_t* codes, float* scales, float* offsets);
void read_iq2_s(const std::byte* block, std::int8_t* codes, float* scales, float* offsets);
void read_iq1_m(const std::byte* block, std::int8_t* codes, float* scales, float* offsets);

}  // namespace topkv
