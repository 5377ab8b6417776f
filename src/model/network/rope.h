// Rotary position embedding: the angles (Su et al. 2021, eq. 34), scaled as RopeScaling says.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/device/compute_device.h"
#include "topkv/model.h"

namespace topkv {

/// Angles of consecutive positions; keeps its buffers between calls.
class RopeTable {
 public:
  RopeTable(double theta, std::int64_t rotary_dim, const RopeScaling& scaling);

  /// Those of layers with LayerRope::model, and with LayerRope::sliding.
  static RopeTable of_model(const ModelConfig& config) {
    return {config.rope_theta, config.rotary_dim, config.rope_scaling};
  }
  static RopeTable of_sliding(const ModelConfig& config) {
    return {config.sliding_rope_theta, config.sliding_rotary(), {}};
  }

  /// cos and sin for positions first .. first + tokens - 1, times the scaling's attention factor;
  /// valid until the next call.
  RopeAngles angles(std::int64_t first, std::int64_t tokens);
  /// cos and sin for positions in any order, times the scaling's attention factor and another
  /// factor; valid until the next call.
  RopeAngles angles(std::span<const std::int64_t> positions, double factor = 1);
  /// cos and sin for positions in any order, times the scaling's attention factor and what queries
  /// grow by at each position; valid until the next call.
  RopeAngles angles(std::span<const std::int64_t> positions, const QueryGrowth& growth);

  /// Radians by position, [rotary_dim / 2]; and what cos and sin are multiplied by.
  const std::vector<float>& frequencies() const { return frequencies_; }
  float attention_factor() const { return attention_factor_; }

 private:
  /// position_of(t): of token t. factor_of(p): of position p.
  template <class PositionOf, class FactorOf>
  RopeAngles angles_of(std::int64_t tokens, const PositionOf& position_of,
                       const FactorOf& factor_of);

  std::vector<float> frequencies_;  // [rotary_dim / 2], radians per position
  float attention_factor_;
  std::vector<float> cos_, sin_;
};

}  // namespace topkv
