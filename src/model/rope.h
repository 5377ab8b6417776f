// Rotary position embedding: the angles (Su et al. 2021, eq. 34; scaling as Llama 3.1 has it).
#pragma once

#include <cstdint>
#include <vector>

#include "src/device/compute_device.h"
#include "topkv/model.h"

namespace topkv {

/// Angles of consecutive positions; keeps its buffers between calls.
class RopeTable {
 public:
  explicit RopeTable(const ModelConfig& config);

  /// cos and sin for positions first .. first + tokens - 1; valid until the next call.
  RopeAngles angles(std::int64_t first, std::int64_t tokens);

 private:
  std::vector<float> frequencies_;  // [head_dim / 2], radians per position
  std::vector<float> cos_, sin_;
};

}  // namespace topkv
