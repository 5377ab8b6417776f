// Squeezed Attention (index/methods/squeezed_index.h) of a question over rows in device memory. The
// many tokens of a question choose together: all of them attend the rows that a head chooses.
// gpu/entries/entry_scores.h states the rules for memory and errors. Here a head step is all tokens
// with one KV head.
//
// The steps are weigh_clusters, choose_important (squeezed_choice.h) and SqueezedAttention::attend.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "bench/kernels/squeezed_choice.h"
#include "gpu/attention/attention.h"
#include "gpu/attention/cudnn_attention.h"
#include "gpu/entries/top_entries.h"

namespace topkv::gpu {

/// A view of the queries of a question, in device memory.
struct SqueezedQueries {
  const __nv_bfloat16* data = nullptr;  ///< [tokens, head_steps, group, head_dim]
  std::int64_t tokens = 0;
  std::int64_t head_steps = 0;
  std::int64_t group = 1;
  std::int64_t head_dim = 0;  ///< 64 or 128
  float scale = 0;            ///< factor of q·k
};

/// The number of floats in the workspace of weigh_clusters.
std::int64_t weigh_workspace(const SqueezedQueries& queries, std::int64_t count);

/// Computes the scores for choose_important: for each head, the logarithms of clusters'
/// importances,
///
///   S_i = exp(q·C_i) / Σ_j N_j exp(q·C_j)
///
/// averaged over the tokens, up to a constant of the head. A token with a score beyond float32 does
/// not count. centroids: [head_steps, slots, head_dim]; scores: [head_steps, group, count]. The
/// function reads the sizes of `clusters`.
void weigh_clusters(const SqueezedQueries& queries, const __nv_bfloat16* centroids,
                    std::int64_t slots, std::int64_t count, const DeviceClusters& clusters,
                    float* workspace, float* scores, cudaStream_t stream);

/// Attention of all tokens over the rows that their heads chose, through cuDNN. Rows are copied
/// next to each other in pieces of piece_rows rows, and `pieces` pieces are attended at a time. The
/// work is thus proportional to the rows chosen. The tokens follow the rows, and attend all of
/// them. Threads: as CudnnAttention.
class SqueezedAttention {
 public:
  struct Shape {
    std::int64_t tokens = 0;
    std::int64_t head_steps = 0;
    std::int64_t group = 1;
    std::int64_t head_dim = 0;  ///< 64 or 128
    float scale = 0;
    std::int64_t rows = 0;  ///< the most rows of a head step
    /// Rows of a piece, a multiple of 256. Smaller pieces spread better over the device, but need
    /// more queries and outputs.
    std::int64_t piece_rows = 4096;
    std::int64_t pieces = 256;  ///< pieces at a time
  };

  /// Makes cuDNN's plan, which takes time. cudnn must outlive it. Throws Unsupported if cuDNN has
  /// no kernel for the shape.
  SqueezedAttention(CudnnAttention& cudnn, const Shape& shape);

  /// The size of the workspace of attend(), in bytes. It must be 256-byte aligned device memory.
  std::int64_t workspace_bytes() const { return layout_.total; }

  /// Computes the partial, [tokens, head_steps, group], of all tokens over the chosen rows of their
  /// head steps. REQUIRES: the queries have the shape; there are no more rows than shape.rows; the
  /// rows lie in one block; entries are rows.
  void attend(const SqueezedQueries& queries, const DeviceRows& rows, const ChosenEntries& chosen,
              const PartialView& partial, Into into, std::byte* workspace, cudaStream_t stream);

 private:
  /// Offsets in the workspace, in bytes.
  struct Layout {
    std::int64_t keys, values, queries, out, lse, tokens_of, rows_of, first, workspace, total;
  };

  CudnnAttention& cudnn_;
  Shape shape_;
  CudnnShape plan_;
  Layout layout_;
};

}  // namespace topkv::gpu
