// The input and the output of a session's step, with one kernel launch each.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/attention/attention.h"
#include "index/common/tail_noise.h"
#include "src/attention/query_forms.h"

namespace topkv::gpu {

/// The input of a step in device memory. Null `v`: there are no values. Counts are numbers of
/// elements. host_*, begun and taken are page-locked host memory. A token has several queries in
/// dual chunk attention (chunk_passes.h); copies of them follow each other.
struct StepInput {
  const float* q[query_forms] = {};
  int forms = 1;
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t q_count = 0;  ///< of one form
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
void copy_in(const StepInput& input, cudaStream_t stream);

/// The partials of all heads of a step. A null `out` means no such partial.
struct StepParts {
  PartialView exact;
  PartialView found;   ///< in page-locked memory
  PartialView listed;  ///< over rows found that the device has attended
  /// The results of scans over codes; exact: over rare rows. The host's tail, in page-locked
  /// memory, has the place of the context's.
  TailParts of_context, of_own;
  double* sums = nullptr;      ///< with a tail: exact_mass and error, summed (TailFigures)
  const int* ready = nullptr;  ///< page-locked; `turn` once `found` is complete; null: it is
  int turn = 0;
};

/// Merges the partials into `out`. A null out.lse is not wanted. Asynchronous on the stream.
void give_step(const StepParts& parts, const PartialView& out, cudaStream_t stream);

}  // namespace topkv::gpu
