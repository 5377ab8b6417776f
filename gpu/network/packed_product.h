// Products with packed weights (src/core/math/matrix.h) on a CUDA device.
//
// All launchers are asynchronous on `stream`, take device pointers, allocate nothing, may be
// captured into a graph, and throw Error when a launch fails. Sizes are 64-bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/core/math/matrix.h"

namespace topkv::gpu {

/// Tokens that a product straight from the codes takes: up to here it is bound by reading these.
inline constexpr std::int64_t most_packed_tokens = 16;

/// out = x W^T (+ out when accumulate), for up to most_packed_tokens tokens. x: [tokens,
/// in_features], out: [tokens, out_features]. Codes are exact in bf16, and their products with x in
/// float32; the sum over a group is scaled in float32. REQUIRES: weight.data aligned to 256 bytes,
/// as Matrix says.
void packed_product(const Matrix& weight, const __nv_bfloat16* x, std::int64_t tokens,
                    bool accumulate, float* out, cudaStream_t stream);

/// Tokens and weights that packed_vectors takes.
inline constexpr std::int64_t most_vector_tokens = 2;
inline constexpr std::int64_t most_products = 3;

/// Of a device, what packed_vectors cuts its work by.
struct VectorLimits {
  int processors = 0;
  int block_bytes = 0;  ///< of shared memory, here and below
  int processor_bytes = 0;
};
VectorLimits vector_limits(int device);

/// What packed_product computes, and biases added, for one or two tokens, faster: inputs are met as
/// digits or halves (packed_inputs.cuh), which are off by 2^-22 of the largest of their 128 at
/// most. False, and nothing done, for more tokens, for weights of different forms, and where the
/// device's shared memory has no room. REQUIRES: at least one product.
bool packed_vectors(const Product* products, std::int64_t count, const __nv_bfloat16* x,
                    std::int64_t tokens, bool accumulate, const VectorLimits& limits,
                    cudaStream_t stream);

/// Likewise with experts, whose numbers for each of so many rows lie in device memory: row r meets
/// x[r / sharing]. False, and not all done, where there is no room for the inputs of one row.
bool packed_experts(const ExpertProduct* products, std::int64_t count, const __nv_bfloat16* x,
                    std::int64_t sharing, const std::int32_t* experts, std::int64_t rows,
                    const VectorLimits& limits, cudaStream_t stream);

/// out = rows [first, first + rows), rounded to bf16: [rows, in_features].
void unpack_rows(const Matrix& weight, std::int64_t first, std::int64_t rows, __nv_bfloat16* out,
                 cudaStream_t stream);

/// out[t] = row tokens[t]. out: [count, in_features].
void unpack_embedding(const Matrix& table, const std::int32_t* tokens, std::int64_t count,
                      float* out, cudaStream_t stream);

}  // namespace topkv::gpu
