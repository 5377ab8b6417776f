// Kernels of the forward pass, except matrix products and attention. They are memory-bound: each
// reads its input once and writes its output once.
//
// All functions are asynchronous on `stream`, take device pointers, do nothing for counts of 0, and
// throw Error when the launch fails. Sizes are 64-bit. Activations are float32; operands are bf16,
// rounded to nearest even.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "src/device/runs_copy.h"

namespace topkv::gpu {

/// Computes out[t] = table[tokens[t]]. table: [vocab, width] bf16; out: [count, width].
void embed(const __nv_bfloat16* table, const std::int32_t* tokens, std::int64_t count,
           std::int64_t width, float* out, cudaStream_t stream);

/// Computes x[row] += bias. x: [rows, width].
void add_bias(const float* bias, std::int64_t rows, std::int64_t width, float* x,
              cudaStream_t stream);

/// Computes out[row] = x[row] / sqrt(mean(x[row]^2) + epsilon) * weight, for any width.
void rms_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t width,
              float epsilon, __nv_bfloat16* out, cudaStream_t stream);
/// Computes out[row] = x[row] / sqrt(mean(x[row]^2) + epsilon) * weight in float32, for any width.
/// out may be x.
void rms_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t width,
              float epsilon, float* out, cudaStream_t stream);

/// Computes x[row] += from[row] / sqrt(mean(from[row]^2) + epsilon) * weight, for any width.
void add_norm(const float* from, const float* weight, std::int64_t rows, std::int64_t width,
              float epsilon, float* x, cudaStream_t stream);

/// The elements of a head that RoPE rotates: pairs (i, i + rotary_dim / 2), or (2i, 2i + 1) if
/// interleaved.
struct RotaryPart {
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;  ///< even, at most head_dim; later elements do not change
  bool interleaved = false;
};

/// Rotates every head. cos, sin: [tokens, rotary_dim / 2]; x: [tokens, heads, head_dim].
void rope(const float* cos, const float* sin, std::int64_t tokens, std::int64_t heads,
          const RotaryPart& part, float* x, cudaStream_t stream);

/// Computes out = gate / (1 + exp(-gate)) * up.
void silu_multiply(const float* gate, const float* up, std::int64_t count, __nv_bfloat16* out,
                   cudaStream_t stream);

/// Computes out = 0.5 gate (1 + tanh(sqrt(2/pi) (gate + 0.044715 gate^3))) * up.
void gelu_multiply(const float* gate, const float* up, std::int64_t count, __nv_bfloat16* out,
                   cudaStream_t stream);

/// Computes out = max(gate, 0) * up.
void relu_multiply(const float* gate, const float* up, std::int64_t count, __nv_bfloat16* out,
                   cudaStream_t stream);

/// Computes out = g / (1 + exp(-1.702 g)) * (u + 1), with g = min(gate, limit) and u = up clamped
/// to [-limit, limit].
void clamped_silu_multiply(const float* gate, const float* up, float limit, std::int64_t count,
                           __nv_bfloat16* out, cudaStream_t stream);

/// Computes x *= factor.
void scale(float factor, std::int64_t count, float* x, cudaStream_t stream);

/// x += from.
void add(const float* from, std::int64_t count, float* x, cudaStream_t stream);
/// Copies runs of float32 values, which do not overlap.
void copy_runs(const float* from, const RunsCopy& runs, float* to, cudaStream_t stream);

/// Rounds x to bf16.
void to_bf16(const float* x, std::int64_t count, __nv_bfloat16* out, cudaStream_t stream);

/// Writes the index of the largest of count values to *best. The first of equal values wins; NaN
/// never wins. scratch: argmax_scratch_bytes() bytes.
void argmax(const float* x, std::int64_t count, std::int32_t* best, void* scratch,
            cudaStream_t stream);
/// The size of argmax's scratch memory, in bytes.
std::int64_t argmax_scratch_bytes();

/// The value of the word `nonfinite` when all elements are finite.
inline constexpr unsigned long long all_finite = ~0ULL;

/// Rounds x to bf16. If elements are not finite in bf16, the device word `nonfinite` is lowered
/// (atomicMin) to the number of the first of them. The caller sets it to all_finite before.
void to_finite_bf16(const float* x, std::int64_t count, __nv_bfloat16* out,
                    unsigned long long* nonfinite, cudaStream_t stream);

/// The target of pack_rows. The key of token t and KV head h goes to keys + h * head_stride + slot
/// * head_dim, and the value to values + h * head_stride + slot * head_dim. slot is (first + t) %
/// ring if ring > 0, else t.
struct PackTarget {
  __nv_bfloat16* keys = nullptr;
  __nv_bfloat16* values = nullptr;
  std::int64_t head_stride = 0;  ///< elements
  std::int64_t first = 0;
  std::int64_t ring = 0;
};

/// Packs K and V, [tokens, kv_heads, head_dim] float32, to bf16 rows, head by head. Null `values`:
/// there are none. If elements are
/// not finite in bf16, the device word `nonfinite` is lowered (atomicMin) to the name of the first
/// of them: 2 * ((t * kv_heads + h) * head_dim + i), plus 1 for V. The caller sets it to all_finite
/// before.
void pack_rows(const float* keys, const float* values, std::int64_t tokens, std::int64_t kv_heads,
               std::int64_t head_dim, const PackTarget& target, unsigned long long* nonfinite,
               cudaStream_t stream);

}  // namespace topkv::gpu
