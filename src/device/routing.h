// How a router's scores choose experts. Kernels read it, so it is C++17 and has no library types.
#pragma once

#include <cstdint>

namespace topkv {

/// How a router's scores choose experts for a token: the k experts that score highest. If scores
/// are equal, the first expert is chosen. NaN counts as the lowest score. ExpertMixture has what
/// the members mean.
struct Routing {
  std::int64_t experts = 0;
  std::int64_t k = 0;     ///< experts of a token, from 1 to experts
  bool over_all = false;  ///< weights are a softmax over all experts, not over the chosen ones
  bool sigmoid = false;
  bool sums_to_one = false;
  float least_sum = 1e-20F;  ///< added to a sum of sigmoids before weights are divided by it
  float scale = 1;
  std::int64_t groups = 1;             ///< a divisor of experts
  std::int64_t chosen_groups = 1;      ///< with at least k experts in all
  const float* choice_bias = nullptr;  ///< [experts], added to sigmoids for the choice; null: none
};

}  // namespace topkv
