// Numbers to measure with, in a GPU's memory.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace bench {

/// About normally distributed, of variance 1; the same for the same seed. Asynchronous, on the
/// default stream.
void fill_normal(__nv_bfloat16* to, std::int64_t count, unsigned seed);

}  // namespace bench
