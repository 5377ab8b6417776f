// The choice of Squeezed Attention (index/methods/squeezed_index.h): the rows of the clusters whose
// importance reaches a threshold. gpu/entries/entry_scores.h states the rules for memory and
// errors.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/entries/top_entries.h"

namespace topkv::gpu {

/// A view of clusters of rows in device memory. rows: [head_steps, row_slots], cluster by cluster;
/// begin: [head_steps, slots + 1], the index in `rows` of the first row of each cluster.
struct DeviceClusters {
  const int* begin = nullptr;
  const int* rows = nullptr;
  std::int64_t slots = 0;
  std::int64_t row_slots = 0;
};

/// Chooses the rows of clusters whose importance is at least exp(log_threshold) for any head of the
/// group. The importance of a cluster is exp(score) / Σ_j N_j exp(score_j) over all clusters of the
/// head step, with N_j rows each. A head without a score above -inf chooses no cluster. Rows do not
/// ascend over clusters. REQUIRES: chosen.capacity >= row_slots.
void choose_important(const float* scores, const HeadStepQueries& queries, std::int64_t count,
                      const DeviceClusters& clusters, float log_threshold,
                      const ChosenEntries& chosen, cudaStream_t stream);

}  // namespace topkv::gpu
