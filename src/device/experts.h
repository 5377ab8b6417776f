// Mixtures of experts: what devices share, and the choice of experts on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/device/compute_device.h"

namespace topkv {

/// ComputeDevice::route of one token. scores: [experts]; ids, weights: [k].
void choose_experts(const float* scores, const Routing& routing, std::int32_t* ids, float* weights);

/// ComputeDevice::attend_sinks of one token.
void attend_sinks(const float* sinks, const float* lse, std::int64_t heads, std::int64_t head_dim,
                  float* x);

/// body(expert, first row, rows) for rows of an expert that lie behind each other: of sorted ones
/// for each expert that has some, else (in host memory) for each row.
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

/// ComputeDevice::expert_products, where each_expert can go through the rows.
void multiply_each_expert(ComputeDevice& device, std::span<const ExpertProduct> all,
                          const std::byte* x, std::int64_t sharing, const ExpertRows& rows);

/// Slots sorted by expert; those of one stay in their order.
struct SortedSlots {
  std::vector<std::int32_t> slots;   // [rows]
  std::vector<std::int32_t> places;  // [slots]: the row of each
  std::vector<std::int64_t> ends;    // [experts]: ExpertRows::ends

  /// experts: of each slot, below `count`. Allocates only where there are more than before.
  void sort(std::span<const std::int32_t> experts, std::int64_t count);
};

}  // namespace topkv
