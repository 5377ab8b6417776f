// Mixtures of experts: code that devices share, and the choice of experts on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/device/compute_device.h"

namespace topkv {

/// Chooses the experts of one token, as ComputeDevice::route does. scores: [experts]; ids, weights:
/// [k].
void choose_experts(const float* scores, const Routing& routing, std::int32_t* ids, float* weights);

/// Applies attention sinks to one token, as ComputeDevice::attend_sinks does.
void attend_sinks(const float* sinks, const float* lse, std::int64_t heads, std::int64_t head_dim,
                  float* x);

/// Calls body(expert, first row, rows) for runs of rows of one expert. Sorted rows have one run for
/// each expert that has rows. Other rows, whose experts must be in host memory, are runs of one row
/// each.
template <class Body>
void each_expert(const ExpertRows& rows, const Body& body) {
  if (rows.ends.empty()) {
    for (std::int64_t r = 0; r < rows.count; ++r) body(std::int64_t{rows.experts[r]}, r, 1);
    return;
  }
  std::int64_t first = 0;
  for (std::size_t e = 0; e < rows.ends.size(); ++e) {
    if (rows.ends[e] > first) body(static_cast<std::int64_t>(e), first, rows.ends[e] - first);
    first = rows.ends[e];
  }
}

/// Implements ComputeDevice::expert_products for rows that each_expert can go through.
void multiply_each_expert(ComputeDevice& device, std::span<const ExpertProduct> all,
                          const std::byte* x, std::int64_t sharing, const ExpertRows& rows);

/// Slots sorted by expert. Slots of one expert keep their order.
struct SortedSlots {
  std::vector<std::int32_t> slots;   // [rows]: the slot of each row
  std::vector<std::int32_t> places;  // [slots]: the row of each slot
  std::vector<std::int64_t> ends;    // [experts]: ExpertRows::ends

  /// Sorts slots. experts: the expert of each slot, below `count`. Allocates only when there are
  /// more slots or experts than before.
  void sort(std::span<const std::int32_t> experts, std::int64_t count);
};

}  // namespace topkv
