// The arithmetic of Gated DeltaNet and Mamba-2 layers on the host (topkv/recurrence.h). SIMD,
// chosen at run time.
#pragma once

#include <cstdint>

namespace topkv {

/// out[c] = silu of bias[c] and the sum over j of weights[j, c] rows[j][c], for `width` channels:
/// one token of a short convolution. rows: the inputs of `kernel` tokens, the oldest first;
/// weights: [kernel, width]; bias: null: none. out is none of the rows.
void convolve_silu(const float* const* rows, const float* weights, const float* bias,
                   std::int64_t kernel, std::int64_t width, float* out);

/// x[i] *= factor / sqrt(sum of squares + epsilon).
void normalise(float* x, std::int64_t count, float epsilon, float factor);

/// One value head over consecutive tokens. Strides are the floats from one token to the next.
struct DeltaHead {
  std::int64_t tokens = 0;  ///< 1 or more
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
  const float* q = nullptr;      ///< [key_dim] of the first token, normalised and scaled
  const float* k = nullptr;      ///< [key_dim], normalised
  const float* v = nullptr;      ///< [value_dim]
  std::int64_t stride = 0;       ///< of q, k and v
  const float* decay = nullptr;  ///< of the first token, from 0 to 1
  const float* rate = nullptr;   ///< its learning rate
  std::int64_t gate_stride = 0;  ///< of decay and rate
  /// Whether what S gives for k is taken off v: the delta rule, S = a S + b k (v - a k^T S). Else
  /// S = a S + b k v^T.
  bool corrects = true;
  float* out = nullptr;  ///< [value_dim]
  std::int64_t out_stride = 0;
};

/// Reads the tokens into S. from: S before them, [key_dim, value_dim]; null: zeros. to: S after
/// them; may be `from`.
void delta_rule(const DeltaHead& head, const float* from, float* to);

}  // namespace topkv
