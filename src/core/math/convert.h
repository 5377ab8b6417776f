// Conversions between float32 and the stored element types.
#pragma once

#include <cstddef>
#include <cstdint>

#include "topkv/types.h"

namespace topkv {

/// out[i] = in[i] as float32, exactly.
void to_float(const std::byte* in, DType dtype, std::int64_t count, float* out);

/// out[i] = in[i] rounded to nearest even. Values beyond f16's range become infinite.
void from_float(const float* in, std::int64_t count, DType dtype, std::byte* out);

/// Index of the first value that is NaN or infinite, -1 when there is none.
std::int64_t first_not_finite(const float* in, std::int64_t count);

}  // namespace topkv
