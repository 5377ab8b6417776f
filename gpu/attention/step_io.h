// What a session's step takes from its caller and gives back, a launch each.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/attention/attention.h"
#include "index/common/tail_noise.h"

namespace topkv::gpu {

/// Counts are of elements; host_*: page-locked memory.
struct StepInput {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t q_count = 0;
  std::int64_t kv_count = 0;
  float* host_q = nullptr;
  float* host_k = nullptr;
  float* host_v = nullptr;
  __nv_bfloat16* queries = nullptr;  ///< q rounded
  int* begun = nullptr;              ///< page-locked: turn, when the device comes to it
  int* taken = nullptr;              ///< likewise, when all is in host memory
  int turn = 0;
};

/// Copies q, k and v to the host unless host_q is null, and rounds q. Asynchronous.
void take_step(const StepInput& input, cudaStream_t stream);

/// What scans over some codes give; out null: none. Or, page-locked, the host's tail.
struct GivenScan {
  DevicePartial rare;
  DevicePartial estimate;            ///< the tail
  const TailNoise* noise = nullptr;  ///< [heads]
};

/// Of all heads of a step.
struct StepParts {
  DevicePartial exact;
  DevicePartial found;  ///< page-locked; out null: none
  GivenScan of_context, of_own;
  double* sums = nullptr;      ///< with a tail: exact_mass, error: heads are added (TailFigures)
  const int* ready = nullptr;  ///< page-locked: `turn`, when `found` is there; null: it is
  int turn = 0;
};

/// out and, unless null, lse: the merge of partials of so many heads. Asynchronous.
void give_step(const StepParts& parts, std::int64_t heads, std::int64_t head_dim, float* out,
               float* lse, cudaStream_t stream);

}  // namespace topkv::gpu
