// Attention over chosen rows in device memory. gpu/entries/entry_scores.h states the rules for
// memory and errors.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/attention/attention.h"
#include "gpu/entries/top_entries.h"

namespace topkv::gpu {

/// The workspace of attend_chosen, through which its blocks exchange partials.
struct ChosenWorkspace {
  int* arrived = nullptr;     ///< [head_steps]: zeros before and after each use
  float* partials = nullptr;  ///< chosen_workspace_bytes bytes
};
/// The bytes of ChosenWorkspace::partials on the current device.
std::int64_t chosen_workspace_bytes(std::int64_t head_dim);

/// Writes the partial of all heads of each group over the rows of the chosen entries. An entry is a
/// page of `page` rows, a power of two. REQUIRES: entries ascend if page > 1. rows.count: the end
/// of the last page of every head step; the rows lie in one block. Rows are spread over the device
/// by their number, not by head step.
void attend_chosen(const HeadStepQueries& queries, const DeviceRows& rows,
                   const ChosenEntries& chosen, std::int64_t page, const PartialView& partial,
                   const ChosenWorkspace& workspace, cudaStream_t stream);

}  // namespace topkv::gpu
