// Products with packed weights (src/core/math/matrix.h) on a CUDA device.
//
// All functions are asynchronous on `stream`, take device pointers, allocate nothing, may be
// captured into a graph, and throw Error when a launch fails. Sizes are 64-bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/core/math/matrix.h"

namespace topkv::gpu {

/// The most tokens of packed_product. Up to here, reading the codes bounds its speed.
inline constexpr std::int64_t most_packed_tokens = 16;

/// Computes out = x W^T, or adds it to out if accumulate is true, for up to most_packed_tokens
/// tokens. x: [tokens, in_features]; out: [tokens, out_features]. Codes are exact in bf16, and
/// their products with x are exact in float32. The sum over a group is scaled in float32. REQUIRES:
/// weight.data is 256-byte aligned.
void packed_product(const Matrix& weight, const __nv_bfloat16* x, std::int64_t tokens,
                    bool accumulate, float* out, cudaStream_t stream);

/// The most tokens and products of packed_vectors.
inline constexpr std::int64_t most_vector_tokens = 2;
inline constexpr std::int64_t most_products = 3;

/// The properties of a device that packed_vectors divides its work by.
struct VectorLimits {
  int processors = 0;
  int block_bytes = 0;      ///< the shared memory of a thread block
  int processor_bytes = 0;  ///< the shared memory of a processor
};
/// Returns the limits of a device.
VectorLimits vector_limits(int device);

/// Computes what packed_product computes, and adds biases, for one or two tokens, but faster.
/// Inputs become digits or halves (packed_inputs.cuh), with an error of at most 2^-22 of the
/// largest of their 128. Returns false, and does nothing, for more tokens, for weights of different
/// forms, and if the device's shared memory is too small. REQUIRES: at least one product.
bool packed_vectors(const Product* products, std::int64_t count, const __nv_bfloat16* x,
                    std::int64_t tokens, bool accumulate, const VectorLimits& limits,
                    cudaStream_t stream);

/// Computes products with experts like packed_vectors. experts: [rows], in device memory, the
/// expert of each row. Row r takes x[r / sharing]. Returns false if the device's shared memory is
/// too small for the inputs of one row; some outputs are written then.
bool packed_experts(const ExpertProduct* products, std::int64_t count, const __nv_bfloat16* x,
                    std::int64_t sharing, const std::int32_t* experts, std::int64_t rows,
                    const VectorLimits& limits, cudaStream_t stream);

/// Unpacks rows [first, first + rows) of the weight to bf16. out: [rows, in_features].
void unpack_rows(const Matrix& weight, std::int64_t first, std::int64_t rows, __nv_bfloat16* out,
                 cudaStream_t stream);

/// Unpacks out[t] = row tokens[t] of the table. out: [count, in_features].
void unpack_embedding(const Matrix& table, const std::int32_t* tokens, std::int64_t count,
                      float* out, cudaStream_t stream);

}  // namespace topkv::gpu
