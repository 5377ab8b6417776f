// The kernels of a forward pass besides products and attention. Memory-bound: each reads its input
// once and writes its output once.
//
// All launchers are asynchronous on `stream`, take device pointers, do nothing for counts of 0, and
// throw Error when the launch fails. Sizes are 64-bit. Activations are float32, operands bf16
// (rounded to nearest even).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace topkv::gpu {

/// out[t] = table[tokens[t]]. table: [vocab, width] bf16; out: [count, width].
void embed(const __nv_bfloat16* table, const std::int32_t* tokens, std::int64_t count,
           std::int64_t width, float* out, cudaStream_t stream);

/// x[row] += bias. x: [rows, width].
void add_bias(const float* bias, std::int64_t rows, std::int64_t width, float* x,
              cudaStream_t stream);

/// out[row] = x[row] / sqrt(mean(x[row]^2) + epsilon) * weight, for any width.
/// The second form may work in place (out == x).
void rms_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t width,
              float epsilon, __nv_bfloat16* out, cudaStream_t stream);
void rms_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t width,
              float epsilon, float* out, cudaStream_t stream);

/// x[row] += from[row] / sqrt(mean(from[row]^2) + epsilon) * weight, for any width.
void add_norm(const float* from, const float* weight, std::int64_t rows, std::int64_t width,
              float epsilon, float* x, cudaStream_t stream);

/// Which elements of a head are turned: pairs (i, i + rotary_dim / 2), or (2i, 2i + 1).
struct RotaryPart {
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;  ///< even, at most head_dim; the elements behind stay as they are
  bool interleaved = false;
};

/// Rotates every head. cos, sin: [tokens, rotary_dim / 2]; x: [tokens, heads, head_dim].
void rope(const float* cos, const float* sin, std::int64_t tokens, std::int64_t heads,
          const RotaryPart& part, float* x, cudaStream_t stream);

/// out = gate / (1 + exp(-gate)) * up.
void silu_multiply(const float* gate, const float* up, std::int64_t count, __nv_bfloat16* out,
                   cudaStream_t stream);

/// out = 0.5 gate (1 + tanh(sqrt(2/pi) (gate + 0.044715 gate^3))) * up.
void gelu_multiply(const float* gate, const float* up, std::int64_t count, __nv_bfloat16* out,
                   cudaStream_t stream);

/// out = g / (1 + exp(-1.702 g)) * (u + 1), g = min(gate, limit), u = up between -limit and limit.
void clamped_silu_multiply(const float* gate, const float* up, float limit, std::int64_t count,
                           __nv_bfloat16* out, cudaStream_t stream);

/// x *= factor.
void scale(float factor, std::int64_t count, float* x, cudaStream_t stream);

/// out = x, rounded.
void to_bf16(const float* x, std::int64_t count, __nv_bfloat16* out, cudaStream_t stream);

/// *best = index of the largest of count values, the first of equal ones; NaN never wins.
/// scratch: argmax_scratch_bytes() bytes.
void argmax(const float* x, std::int64_t count, std::int32_t* best, void* scratch,
            cudaStream_t stream);
std::int64_t argmax_scratch_bytes();

/// No value that cannot be stored was seen.
inline constexpr unsigned long long all_finite = ~0ULL;

/// As to_bf16, and finds what is not finite in bf16: the number of the first such element lowers
/// (atomicMin) the device word `bad`, which the caller sets to all_finite.
void to_finite_bf16(const float* x, std::int64_t count, __nv_bfloat16* out, unsigned long long* bad,
                    cudaStream_t stream);

/// Where pack_rows puts row (token t, KV head h): keys + h * head_stride + slot * head_dim,
/// likewise values; slot = (first + t) % ring when ring > 0, else t.
struct PackTarget {
  __nv_bfloat16* keys = nullptr;
  __nv_bfloat16* values = nullptr;
  std::int64_t head_stride = 0;  ///< elements
  std::int64_t first = 0;
  std::int64_t ring = 0;
};

/// K and V [tokens, kv_heads, head_dim] float32 to bf16 rows, head by head.
/// bad: device word; lowered (atomicMin) to 2 * ((t * kv_heads + h) * head_dim + i) + (1 for V) of
/// the first element that is NaN, infinite or becomes so in bf16. The caller sets it to all_finite.
void pack_rows(const float* keys, const float* values, std::int64_t tokens, std::int64_t kv_heads,
               std::int64_t head_dim, const PackTarget& target, unsigned long long* bad,
               cudaStream_t stream);

}  // namespace topkv::gpu
