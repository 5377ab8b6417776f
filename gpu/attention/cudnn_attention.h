// Attention of large aligned blocks through cuDNN's fused attention, as partials.
//
// cuDNN is not linked: libcudnn.so.9 and the libcudart.so that its front end wants are looked for
// when the program runs. A topkv built without the front end's headers has the same interface, and
// available() says so.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "gpu/attention/attention.h"

namespace topkv::gpu {

/// What an execution plan is made for.
struct CudnnShape {
  std::int64_t head_dim = 0;
  std::int64_t q_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t tokens = 0;
  std::int64_t rows = 0;         ///< of each KV head; in one place
  std::int64_t head_stride = 0;  ///< elements from one KV head's keys (values) to the next
  bool causal = false;           ///< the last token sees all rows, each one before it one less
  float scale = 0;               ///< on q·k
  std::int64_t entries = 1;      ///< attended beside each other: all arrays have as many parts
  bool padded = false;           ///< entries have lengths of their own (CudnnLengths)
};

/// Of padded entries: how many tokens and rows each has, in device memory, [entries]. What is
/// written for those behind them, is nothing.
struct CudnnLengths {
  const int* tokens = nullptr;
  const int* rows = nullptr;
};

/// cuDNN's result, which is not in the form of DevicePartial.
struct CudnnPartial {
  __nv_bfloat16* out = nullptr;  ///< [tokens, q_heads, head_dim]
  float* lse = nullptr;          ///< [q_heads, tokens], natural log
};

/// A cuDNN handle and the plans made so far. One thread at a time. On the device that is current
/// when it is made.
class CudnnAttention {
 public:
  /// Whether cuDNN can be used in this process; else why not.
  static bool available(std::string* why);

  /// Throws Unsupported unless available().
  CudnnAttention();
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;  // owns a cuDNN handle
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  /// Whether cuDNN has a kernel for the shape. Makes its plan, once, which takes time; why: cuDNN's
  /// words when it has none. Also false for a shape with a row that no token sees, or the reverse.
  bool supports(const CudnnShape& shape, std::string* why = nullptr);

  /// Device memory that attend() works in. REQUIRES: supports(shape).
  std::int64_t workspace_bytes(const CudnnShape& shape);

  /// queries: [tokens, q_heads, head_dim]; keys, values: as in DeviceRows. Asynchronous, on stream.
  /// workspace: workspace_bytes(shape), 256-byte aligned. lengths: of padded entries, behind whose
  /// rows are numbers up to a multiple of 256 rows. Throws Error when cuDNN fails.
  void attend(const CudnnShape& shape, const __nv_bfloat16* queries, const __nv_bfloat16* keys,
              const __nv_bfloat16* values, const CudnnPartial& out, void* workspace,
              cudaStream_t stream, const CudnnLengths& lengths = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Merges cuDNN's result into the partial, or writes it over it. Asynchronous, on stream.
void store_cudnn_partial(const CudnnPartial& from, std::int64_t tokens, std::int64_t q_heads,
                         std::int64_t head_dim, const DevicePartial& partial, Into into,
                         cudaStream_t stream);

}  // namespace topkv::gpu
