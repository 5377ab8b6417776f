// The operations that a forward pass is written against, so that it is written once. An
// implementation owns where the arithmetic runs; attention over stored rows is not here but behind
// AttendFn (src/model/forward.h), for rows stay in host memory.
//
// Layout: activations are float32, row-major [tokens, features]. Weights stay in the checkpoint's
// dtype.
// Threads: const and safe from many threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "topkv/types.h"

namespace topkv {

/// A weight matrix [out_features, in_features] as the checkpoint holds it; not owned. Elements may
/// be unaligned.
struct Matrix {
  const std::byte* data = nullptr;
  DType dtype = DType::bf16;
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
};

/// cos and sin of the rotary angles of consecutive positions: [tokens, head_dim / 2].
struct RopeAngles {
  const float* cos = nullptr;
  const float* sin = nullptr;
};

class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;

  /// out[t] = row tokens[t] of the table. out: [tokens, in_features].
  /// REQUIRES: 0 <= token < table.out_features.
  virtual void embed(const Matrix& table, std::span<const Token> tokens, float* out) const = 0;

  /// out = x W^T (+ out when accumulate). x: [tokens, in_features], out: [tokens, out_features].
  virtual void matmul(const Matrix& weight, const float* x, std::int64_t tokens, bool accumulate,
                      float* out) const = 0;

  /// x[row] += bias, for each of the rows. x: [rows, width].
  virtual void add_bias(const float* bias, std::int64_t rows, std::int64_t width,
                        float* x) const = 0;

  /// out[row] = RMSNorm of x[row] over width. out may be x.
  virtual void rms_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t width,
                        float epsilon, float* out) const = 0;

  /// Rotates every head in place. x: [tokens, heads, head_dim].
  virtual void rope(const RopeAngles& angles, std::int64_t tokens, std::int64_t heads,
                    std::int64_t head_dim, float* x) const = 0;

  /// gate = silu(gate) * up, element by element.
  virtual void silu_multiply(const float* up, std::int64_t count, float* gate) const = 0;
};

/// The host's cores. Lives as long as the program.
const ComputeDevice& host_device();

}  // namespace topkv
