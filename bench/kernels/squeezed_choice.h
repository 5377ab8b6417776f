// The choice of Squeezed Attention (index/methods/squeezed_index.h): the rows of the clusters whose
// importance reaches a threshold. entry_scores.h has the rules for shapes, memory and errors.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/entries/top_entries.h"

namespace topkv::gpu {

/// Clusters of rows: of each the number of the first of its rows in `rows`, [head_steps, slots +
/// 1], and rows, [head_steps, row_slots], cluster by cluster.
struct DeviceClusters {
  const int* begin = nullptr;
  const int* rows = nullptr;
  std::int64_t slots = 0;
  std::int64_t row_slots = 0;
};

/// Rows of the clusters whose importance, exp(score) / Σ_j N_j exp(score_j) over all clusters of
/// the head step with N_j rows each, is at least exp(log_threshold) for any head of the group. Of a
/// head none of whose scores is above -inf none are. Rows do not ascend over clusters. capacity:
/// row_slots.
void choose_important(const float* scores, const HeadStepQueries& queries, std::int64_t count,
                      const DeviceClusters& clusters, float log_threshold,
                      const ChosenEntries& chosen, cudaStream_t stream);

}  // namespace topkv::gpu
