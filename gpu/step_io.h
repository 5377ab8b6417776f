// What a session's step takes from its caller and gives back, a launch each.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/attention.h"
#include "index/tail_noise.h"

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
  int* taken = nullptr;              ///< page-locked: 1 when all is in host memory
};

/// Copies q, k and v to the host unless host_q is null, and rounds q. Asynchronous.
void take_step(const StepInput& input, cudaStream_t stream);

/// A tail's estimate, in device memory or page-locked.
struct GivenTail {
  DevicePartial estimate;            ///< out null: there is none
  const TailNoise* noise = nullptr;  ///< [heads]
  bool merged = false;               ///< the exact part has it already
  double* sums = nullptr;            ///< exact_mass, error: heads are added (TailFigures)
};

/// out and, unless null, lse: the merge of partials of so many heads; found: in page-locked
/// memory, null: none. Asynchronous.
void give_step(const DevicePartial& exact, const DevicePartial& found, const GivenTail& tail,
               std::int64_t heads, std::int64_t head_dim, float* out, float* lse,
               cudaStream_t stream);

}  // namespace topkv::gpu
