// Products with weights of 4 bits (int4, fp4; matrix.h) on the host, for few tokens. Codes are met
// as the integers that they are, and activations as three signed bytes and a power of two that up
// to 128 inputs share: off by 2^-22 of the largest of these at most. Sums of their products are
// exact, and scaled in float32. What is not finite makes sums NaN.
#pragma once

#include <cstdint>

#include "src/core/math/matrix.h"

namespace topkv {

/// The activations of a token, x [in_features], in the form in which codes are met:
/// [arranged_size].
void arrange_for_nibbles(const Matrix& packed, const float* x, float* arranged);

/// packed_dot (packed_product.h) of such weights.
void nibble_dot(const Matrix& packed, std::int64_t first, std::int64_t rows, const float* arranged,
                std::int64_t tokens, float* out, std::int64_t stride);

}  // namespace topkv
