// Matrix products on a CUDA device: float32 sums and results of bf16 operands, or of float32. The
// one place that uses cuBLAS, which allocates nothing of its own once it has a workspace.
#pragma once

#include <cublas_v2.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "src/device/compute_device.h"

namespace topkv::gpu {

class Cublas {
 public:
  /// All products run on the stream, which outlives this, of the current device.
  explicit Cublas(cudaStream_t stream);
  ~Cublas();
  Cublas(const Cublas&) = delete;  // owns its handle
  Cublas& operator=(const Cublas&) = delete;

  /// Bytes of workspace that let cuBLAS choose among all its kernels on any architecture.
  static constexpr std::int64_t workspace_bytes = std::int64_t{32} << 20;
  /// REQUIRES: before the first product; workspace_bytes bytes.
  void set_workspace(Buffer workspace);

  /// out = x W^T (+ out when accumulate). x: [tokens, in], weight: [out_features, in],
  /// out: [tokens, out_features], all row-major, rows of out `stride` elements apart. Asynchronous.
  /// Throws Error when cuBLAS refuses.
  void multiply(const __nv_bfloat16* weight, std::int64_t out_features, std::int64_t in,
                const __nv_bfloat16* x, std::int64_t tokens, bool accumulate, float* out,
                std::int64_t stride);

  /// out = axes x^T, in float32 throughout. axes: [count, dim], x: [vectors, dim],
  /// out: [count, stride], stride >= vectors. Asynchronous. Throws Error when cuBLAS refuses.
  void project(const float* axes, std::int64_t count, std::int64_t dim, const float* x,
               std::int64_t vectors, float* out, std::int64_t stride);

 private:
  Buffer workspace_;  // outlives the handle
  cublasHandle_t handle_ = nullptr;
};

}  // namespace topkv::gpu
