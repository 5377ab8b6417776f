// Attention over large aligned blocks with cuDNN's fused attention. The result is a partial.
//
// cuDNN is not linked. The program looks for libcudnn.so.9, and for the libcudart.so that its front
// end needs, when it runs. A topkv that was built without the headers of the front end has the same
// interface; available() returns false there.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "gpu/attention/attention.h"

namespace topkv::gpu {

/// The shape that an execution plan is made for.
struct CudnnShape {
  std::int64_t head_dim = 0;
  std::int64_t q_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t tokens = 0;
  std::int64_t rows = 0;         ///< rows of each KV head, contiguous
  std::int64_t head_stride = 0;  ///< elements from the keys or values of a KV head to the next
  bool causal = false;           ///< the last token sees all rows, the token before it one row less
  float scale = 0;               ///< factor of q·k
  std::int64_t entries = 1;      ///< batch size: the outermost dimension of all arrays
  bool padded = false;           ///< whether entries have lengths (CudnnLengths)
};

/// The numbers of tokens and of rows of each padded entry, [entries], in device memory. Outputs
/// beyond an entry's tokens are undefined.
struct CudnnLengths {
  const int* tokens = nullptr;
  const int* rows = nullptr;
};

/// A view of cuDNN's result in device memory. Its layout differs from PartialView.
struct CudnnPartial {
  __nv_bfloat16* out = nullptr;  ///< [tokens, q_heads, head_dim]
  float* lse = nullptr;          ///< [q_heads, tokens], natural log
};

/// A cuDNN handle and its plans, for the device that is current at construction. Threads: one at a
/// time.
class CudnnAttention {
 public:
  /// Whether cuDNN can be used in this process. why: receives the reason if not; may be null.
  static bool available(std::string* why);

  /// Throws Unsupported unless available().
  CudnnAttention();
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;  // owns a cuDNN handle
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  /// Whether cuDNN has a kernel for the shape. The first call for a shape makes its plan, which
  /// takes time. why: receives cuDNN's message if there is none. Returns false for a causal shape
  /// in which a row is seen by no token, or a token sees no row.
  bool supports(const CudnnShape& shape, std::string* why = nullptr);

  /// The device memory that attend() needs as workspace, in bytes. REQUIRES: supports(shape).
  std::int64_t workspace_bytes(const CudnnShape& shape);

  /// Computes the partial of queries [tokens, q_heads, head_dim] over rows in the layout of
  /// DeviceRows. workspace: workspace_bytes(shape) bytes, 256-byte aligned. lengths: for padded
  /// entries; up to the next multiple of 256 rows, the rows behind an entry must be finite.
  /// Asynchronous on the stream. Throws Error when cuDNN fails.
  void attend(const CudnnShape& shape, const __nv_bfloat16* queries, const __nv_bfloat16* keys,
              const __nv_bfloat16* values, const CudnnPartial& out, void* workspace,
              cudaStream_t stream, const CudnnLengths& lengths = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Overwrites `partial` with cuDNN's result, or merges the result into it. Asynchronous on the
/// stream.
void store_cudnn_partial(const CudnnPartial& from, std::int64_t tokens, std::int64_t q_heads,
                         std::int64_t head_dim, const PartialView& partial, Into into,
                         cudaStream_t stream);

}  // namespace topkv::gpu
