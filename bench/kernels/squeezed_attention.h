// Squeezed Attention (index/methods/squeezed_index.h) of a question where rows lie in the device's
// memory: many tokens that choose together, of each head the rows that all of them attend. What
// entry_scores.h says of head steps, memory and refusals holds here; a head step is that of all
// tokens with a KV head.
//
// A question goes: weigh_clusters, choose_important (squeezed_choice.h), SqueezedAttention::attend.
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

struct SqueezedQueries {
  const __nv_bfloat16* data = nullptr;  ///< [tokens, head_steps, group, head_dim]
  std::int64_t tokens = 0;
  std::int64_t head_steps = 0;
  std::int64_t group = 1;
  std::int64_t head_dim = 0;  ///< 64 or 128
  float scale = 0;            ///< on q·k
};

/// Floats that weigh_clusters works in.
std::int64_t weigh_workspace(const SqueezedQueries& queries, std::int64_t count);

/// What choose_important chooses by: for each head the logarithms of clusters' importances,
///
///   S_i = exp(q·C_i) / Σ_j N_j exp(q·C_j)
///
/// averaged over the tokens, up to a number that is the head's. A token of which a score is beyond
/// float32 has no say. centroids: [head_steps, slots, head_dim]; scores: [head_steps, group,
/// count]; of clusters: how many rows each has.
void weigh_clusters(const SqueezedQueries& queries, const __nv_bfloat16* centroids,
                    std::int64_t slots, std::int64_t count, const DeviceClusters& clusters,
                    float* workspace, float* scores, cudaStream_t stream);

/// Attention of all tokens over the rows that their heads chose, by cuDNN. Rows are copied next to
/// each other in pieces of so many, whichever heads have them, and as many pieces as there is room
/// for are attended at a time; so the work is that of the rows chosen. Tokens attend all rows that
/// were chosen: they come behind them. Threads: as CudnnAttention.
class SqueezedAttention {
 public:
  struct Shape {
    std::int64_t tokens = 0;
    std::int64_t head_steps = 0;
    std::int64_t group = 1;
    std::int64_t head_dim = 0;  ///< 64 or 128
    float scale = 0;
    std::int64_t rows = 0;  ///< of a head step, at most
    /// Of a piece, a multiple of 256: fewer spread better over the device, and more queries and
    /// outputs are written and read for them.
    std::int64_t piece_rows = 4096;
    std::int64_t pieces = 256;  ///< at a time
  };

  /// Makes cuDNN's plan, which takes time. cudnn: outlives this. Throws Unsupported where it has
  /// none.
  SqueezedAttention(CudnnAttention& cudnn, const Shape& shape);

  /// Device memory that attend works in, 256-byte aligned.
  std::int64_t workspace_bytes() const { return layout_.total; }

  /// The partial, [tokens, head_steps, group], of all tokens over rows of their head steps.
  /// REQUIRES: queries of the shape, no more rows, none of them in a ring, and entries that are
  /// rows.
  void attend(const SqueezedQueries& queries, const DeviceRows& rows, const ChosenEntries& chosen,
              const DevicePartial& partial, Into into, std::byte* workspace, cudaStream_t stream);

 private:
  /// Offsets of what a piece has, and of all else.
  struct Layout {
    std::int64_t keys, values, queries, out, lse, tokens_of, rows_of, first, workspace, total;
  };

  CudnnAttention& cudnn_;
  Shape shape_;
  CudnnShape plan_;
  Layout layout_;
};

}  // namespace topkv::gpu
