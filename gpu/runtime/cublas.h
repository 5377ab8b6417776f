// Matrix products on a CUDA device: bf16 or float32 operands, float32 sums and results. Only this
// file uses cuBLAS. cuBLAS allocates no memory of its own once it has a workspace.
#pragma once

#include <cublas_v2.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "src/device/compute_device.h"

namespace topkv::gpu {

/// A cuBLAS handle, for one stream. Threads: one at a time.
class Cublas {
 public:
  /// Runs all products on the stream, a stream of the current device, which must outlive it.
  explicit Cublas(cudaStream_t stream);
  ~Cublas();
  Cublas(const Cublas&) = delete;  // owns its handle
  Cublas& operator=(const Cublas&) = delete;

  /// The workspace, in bytes, with which cuBLAS can choose among all its kernels on any
  /// architecture.
  static constexpr std::int64_t workspace_bytes = std::int64_t{32} << 20;
  /// Sets the workspace, of workspace_bytes bytes. REQUIRES: no product has run.
  void set_workspace(Buffer workspace);

  /// Computes out = x W^T, or adds it to out if accumulate is true. x: [tokens, in]; weight:
  /// [out_features, in]; out: [tokens, out_features], rows `stride` elements apart; all row-major.
  /// Asynchronous. Throws Error when cuBLAS fails.
  void multiply(const __nv_bfloat16* weight, std::int64_t out_features, std::int64_t in,
                const __nv_bfloat16* x, std::int64_t tokens, bool accumulate, float* out,
                std::int64_t stride);

  /// Computes out = axes x^T in float32. axes: [count, dim]; x: [vectors, dim]; out: [count,
  /// stride], stride >= vectors. Asynchronous. Throws Error when cuBLAS fails.
  void project(const float* axes, std::int64_t count, std::int64_t dim, const float* x,
               std::int64_t vectors, float* out, std::int64_t stride);

 private:
  Buffer workspace_;  // outlives the handle
  cublasHandle_t handle_ = nullptr;
};

}  // namespace topkv::gpu
