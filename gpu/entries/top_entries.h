// The entries with the best scores. An entry is a row, a page of consecutive rows, or a cluster.
//
// Scores are [head_steps, group, count], float32, with count at most most_candidates(). The first
// of equal scores wins; a NaN comes last. The chosen entries of a head step ascend. All pointers
// are to device memory; the functions allocate nothing and run asynchronously on the stream. They
// throw Unsupported and InvalidArgument before they launch a kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/entries/head_step_queries.h"

namespace topkv::gpu {

/// The chosen entries of each head step. It owns nothing.
struct ChosenEntries {
  int* entries = nullptr;     ///< [head_steps, capacity], each entry at most once
  int* counts = nullptr;      ///< [head_steps], the number of entries chosen
  std::int64_t capacity = 0;  ///< the most entries that a head step can choose, or more
};

/// The most scores of a head that the current device can choose among: 262,144, or 32,768 on a
/// device without clusters of thread blocks.
std::int64_t most_candidates();

/// Chooses the entries that are among the k best of any head of the group. REQUIRES: 1 <= k <=
/// count, and a capacity of min(count, group * k).
void choose_best(const float* scores, const HeadStepQueries& queries, std::int64_t count,
                 std::int64_t k, const ChosenEntries& chosen, cudaStream_t stream);

/// Chooses the k entries with the largest sums of the heads' softmax weights. An entry whose scores
/// are all NaN comes behind the entries whose weights are 0 in float32. shares: [head_steps,
/// group], receives the share of a head's softmax that the chosen entries have. REQUIRES: 1 <= k <=
/// count, and a capacity of k.
void choose_heaviest(const float* scores, const HeadStepQueries& queries, std::int64_t count,
                     std::int64_t k, const ChosenEntries& chosen, float* shares,
                     cudaStream_t stream);

}  // namespace topkv::gpu
