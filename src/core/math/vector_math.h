// Element-wise float32 operations of attention and of the forward pass. SIMD, chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "topkv/types.h"

namespace topkv {

/// The largest value; -inf for none.
float max_of(const float* x, std::int64_t count);

/// x[i] = exp(x[i] - shift); gives their sum. -inf becomes 0.
float exp_shifted(float* x, std::int64_t count, float shift);

/// x[i] = cap * tanh(x[i] / cap). -inf becomes -cap.
void soft_cap(float* x, std::int64_t count, float cap);

/// x[i] *= factor.
void scale_by(float* x, std::int64_t count, float factor);

/// out[i] += factor * x[i].
void add_scaled(float* out, float factor, const float* x, std::int64_t count);

/// out[i] += x[i].
void add_to(float* out, const float* x, std::int64_t count);

/// out[i] = x[i] / sqrt(mean(x^2) + epsilon) * weight[i] (RMSNorm). out may be x.
void rms_norm(const float* x, const float* weight, std::int64_t count, float epsilon, float* out);

/// gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i] (the gate of a SwiGLU MLP).
void silu_multiply(float* gate, const float* up, std::int64_t count);

/// out[i] = x[i] / (1 + exp(-gate[i])). out may be x or gate.
void sigmoid_multiply(const float* gate, const float* x, std::int64_t count, float* out);

/// gate[i] = 0.5 gate[i] (1 + tanh(sqrt(2/pi) (gate[i] + 0.044715 gate[i]^3))) * up[i] (the gate of
/// a GeGLU MLP, with the tanh form of GELU).
void gelu_multiply(float* gate, const float* up, std::int64_t count);

/// out[i] = g sigmoid(1.702 g) (u + 1), where g is gate[i], at most limit, and u is up[i], held
/// between -limit and limit (the gate of gpt-oss's MLPs). out may be gate or up.
void clamped_silu_multiply(const float* gate, const float* up, float limit, std::int64_t count,
                           float* out);

/// Rotates the halves of one head: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), where x1 is the
/// first half of the head and x2 the second (the layout of Hugging Face checkpoints).
/// cos, sin: [head_dim / 2].
void rotate_half(float* head, std::int64_t head_dim, const float* cos, const float* sin);

/// The same for elements that lie beside each other: x1 is element 2i, x2 element 2i + 1.
void rotate_pairs(float* head, std::int64_t head_dim, const float* cos, const float* sin);

}  // namespace topkv
