// Attention over chosen rows in device memory. entry_scores.h has the rules for shapes, memory and
// errors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/attention/attention.h"
#include "gpu/entries/top_entries.h"

namespace topkv::gpu {

/// What blocks of attend_chosen leave for each other.
struct ChosenWorkspace {
  int* arrived = nullptr;     ///< [head_steps]: 0 before the first use, and after each
  float* partials = nullptr;  ///< chosen_workspace_bytes
};
/// For the current device.
std::int64_t chosen_workspace_bytes(std::int64_t head_dim);

/// The partial of all heads of each group over the rows of its head step's entries, pages of `page`
/// rows (a power of two; above 1: entries ascend). rows.count: of every head step, where the last
/// page ends; in one place. Rows are spread over the device by their number, whichever head steps
/// have them.
void attend_chosen(const HeadStepQueries& queries, const DeviceRows& rows,
                   const ChosenEntries& chosen, std::int64_t page, const DevicePartial& partial,
                   const ChosenWorkspace& workspace, cudaStream_t stream);

}  // namespace topkv::gpu
