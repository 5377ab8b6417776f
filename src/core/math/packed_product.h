// Products with packed weights (matrix.h) on the host: with few tokens straight from the codes, so
// that they take the time that reading these takes; with many, rows are unpacked first. Compiled
// for every x86 level and chosen at run time (Highway). Codes of 8 bits are widened to float32, and
// products and sums are float32; those of 4 bits: nibble_product.h.
#pragma once

#include <cstdint>

#include "src/core/math/matrix.h"

namespace topkv {

/// Floats of the arranged activations of one token.
std::int64_t arranged_size(const Matrix& packed);

/// x [tokens, in_features] in the order in which codes are met, to [tokens, arranged_size].
void arrange_inputs(const Matrix& packed, const float* x, std::int64_t tokens, float* arranged);

/// out[t * stride + r] = row first + r of the matrix · token t. No token's products depend on which
/// other tokens there are.
void packed_dot(const Matrix& packed, std::int64_t first, std::int64_t rows, const float* arranged,
                std::int64_t tokens, float* out, std::int64_t stride);

/// out = rows first and on as float32, [rows, in_features].
void unpack_rows(const Matrix& packed, std::int64_t first, std::int64_t rows, float* out);

}  // namespace topkv
