// What the recurrences of the host have in common.
#pragma once

#include <cmath>

namespace topkv {

inline float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

/// Returns the step with its states where `states` says that they stand now, if it says so.
template <class Step>
Step placed(Step step) {
  if (step.states == nullptr) return step;
  step.state = step.states[0];
  step.next_state = const_cast<float*>(step.states[1]);
  return step;
}

}  // namespace topkv
