// The input and the output of a session's step, with one kernel launch each.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/attention/attention.h"
#include "index/common/tail_noise.h"

namespace topkv::gpu {

/// The input of a step in device memory. Counts are numbers of elements. host_*, begun and taken
/// are page-locked host memory.
struct StepInput {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t q_count = 0;
  std::int64_t kv_count = 0;
  float* host_q = nullptr;
  float* host_k = nullptr;
  float* host_v = nullptr;
  __nv_bfloat16* queries = nullptr;  ///< receives q in bf16
  int* begun = nullptr;              ///< receives `turn` when the step begins on the device
  int* taken = nullptr;              ///< receives `turn` when q, k and v are in host memory
  int turn = 0;                      ///< the number of the step
};

/// Copies q, k and v to the host unless host_q is null, and rounds q to bf16. Asynchronous on the
/// stream.
void take_step(const StepInput& input, cudaStream_t stream);

/// The results of scans over codes. A null `out` means no such partial. The host's tail has this
/// form too, in page-locked memory.
struct GivenScan {
  DevicePartial rare;
  DevicePartial estimate;            ///< the tail
  const TailNoise* noise = nullptr;  ///< [heads]
};

/// The partials of all heads of a step.
struct StepParts {
  DevicePartial exact;
  DevicePartial found;  ///< in page-locked memory; a null `out` means no such partial
  GivenScan of_context, of_own;
  double* sums = nullptr;      ///< with a tail: exact_mass and error, summed (TailFigures)
  const int* ready = nullptr;  ///< page-locked; `turn` once `found` is complete; null: it is
  int turn = 0;
};

/// Merges the partials of `heads` heads into out and, unless null, lse. Asynchronous on the stream.
void give_step(const StepParts& parts, std::int64_t heads, std::int64_t head_dim, float* out,
               float* lse, cudaStream_t stream);

}  // namespace topkv::gpu
