// Selection methods of the literature where rows and what stands for them lie in the device's
// memory: scores of what stands for keys, and the choice of those that score best. index/ has the
// same methods on the host (quest_index.h, sparq_index.h, cluster_index.h), where their papers are
// named.
//
// A *meeting* is that of one token with one KV head: of one step of `sequences` sequences, number
// sequence * kv_heads + KV head. Each has rows of its own, and `group` query heads, 16 at most.
// Everything is in device memory, 16-byte aligned; nothing is allocated, all is asynchronous, on
// the stream. What cannot be is refused before anything is launched: Unsupported for a head dim or
// a number that the kernels do not know, InvalidArgument otherwise.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/attention/attention.h"

namespace topkv::gpu {

struct MeetingQueries {
  const __nv_bfloat16* data = nullptr;  ///< [meetings, group, head_dim]
  std::int64_t meetings = 0;
  std::int64_t group = 1;
  std::int64_t head_dim = 0;  ///< 64 or 128
  float scale = 0;            ///< on q·k
};

/// Chosen entries of each meeting: rows, or pages of consecutive rows.
struct ChosenEntries {
  int* entries = nullptr;     ///< [meetings, capacity], each once
  int* counts = nullptr;      ///< [meetings]
  std::int64_t capacity = 0;  ///< REQUIRES: as many as can be chosen
};

// Scores: [meetings, group, count] float32, times the queries' scale.

/// Quest: what no key of a page exceeds, Σ_i max(q_i largest_i, q_i smallest_i).
void score_pages(const MeetingQueries& queries, const __nv_bfloat16* bounds,
                 std::int64_t page_slots, std::int64_t pages, float* scores, cudaStream_t stream);

/// q·c of centroids [meetings, slots, head_dim].
void score_centroids(const MeetingQueries& queries, const __nv_bfloat16* centroids,
                     std::int64_t slots, std::int64_t count, float* scores, cudaStream_t stream);

/// The same in float32, of queries that are too, in place of queries.data.
void score_centroids(const MeetingQueries& queries, const float* exact, const float* centroids,
                     std::int64_t slots, std::int64_t count, float* scores, cudaStream_t stream);

/// SparQ: by the `read` components with the largest sum of |q| over the group, divided by the
/// square root of the share of |q| that they have. components: [meetings, head_dim, slots].
/// REQUIRES: slots is a multiple of 8.
void score_components(const MeetingQueries& queries, const __nv_bfloat16* components,
                      std::int64_t slots, std::int64_t rows, std::int64_t read, float* scores,
                      cudaStream_t stream);

/// Of a choice, on the current device: 262,144, or 32,768 where it knows no clusters of blocks.
std::int64_t most_candidates();

// Choices among `count` scores of each head, at most most_candidates(). Of equal ones the first;
// what is not a number comes last. Entries ascend.

/// Those that are among the k best of any head of the group. capacity: group * k.
void choose_best(const float* scores, const MeetingQueries& queries, std::int64_t count,
                 std::int64_t k, const ChosenEntries& chosen, cudaStream_t stream);

/// The k for which the heads' softmax weights sum to the most; those that no head has a number for
/// come behind those whose weights are 0 in float32. shares: [meetings, group], how much
/// of a head's softmax these have. capacity: k.
void choose_heaviest(const float* scores, const MeetingQueries& queries, std::int64_t count,
                     std::int64_t k, const ChosenEntries& chosen, float* shares,
                     cudaStream_t stream);

}  // namespace topkv::gpu
