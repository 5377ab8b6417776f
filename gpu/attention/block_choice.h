// The choice of earlier keys in a sparse prefill on a CUDA device, and attention over the keys
// chosen. It chooses as src/attention/block_choice.h says. All of a layer's rows lie in device
// memory as bf16 meanwhile.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu/attention/attention.h"
#include "src/attention/block_budget.h"

namespace topkv::gpu {

/// Returns the device memory that choose_and_attend takes for steps of `chunk` tokens in texts of
/// up to `tokens` tokens.
std::int64_t choice_bytes(const LayerHeads& heads, std::int64_t q_heads,
                          const DeviceVisibility& always, const BlockBudget& budget,
                          std::int64_t chunk, std::int64_t tokens);

/// What tokens attended, in device memory: sums that grow (PrefillShare).
struct ShareSums {
  double mass;
  unsigned long long keys;
};

/// The memory of a call.
struct ChoiceMemory {
  std::byte* data = nullptr;  ///< choice_bytes(...) for the steps and the text, 256-byte aligned
  std::int64_t chunk = 0, tokens = 0;  ///< as choice_bytes was asked
};

/// The queries of a step.
struct StepQueries {
  QueryView<__nv_bfloat16> own;
  /// With dual chunk attention: elements from `own` to the queries for keys of the chunk before,
  /// and from these to those for keys of earlier chunks.
  std::int64_t form_stride = 0;
  std::int64_t chunk_len = 0;  ///< tokens, a multiple of query_block; 0: no chunks
  bool has_far =
      false;  ///< false: keys of all earlier chunks meet the queries for the chunk before
};

/// Lets the queries choose, and overwrites `partial` with their attention, [tokens, q_heads] heads.
/// rows: of positions 0 to that of the last token; those of a head are contiguous. always: the
/// window and the sinks that tokens attend in any case. sums: is added to. Asynchronous on the
/// stream.
///
/// REQUIRES: groups of at most most_choosing_heads_on_cuda query heads (16 KiB of shared memory for
/// samples); a budget of at most most_chosen_keys_on_cuda keys (32 KiB for entries) that does not
/// measure.
void choose_and_attend(const LayerHeads& heads, const StepQueries& step, const DeviceRows& rows,
                       const DeviceVisibility& always, const BlockBudget& budget,
                       const ChoiceMemory& memory, const PartialView& partial, ShareSums* sums,
                       cudaStream_t stream);

}  // namespace topkv::gpu
