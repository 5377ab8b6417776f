#include "src/eval/run/likelihood.h"

#include <algorithm>
#include <cmath>

namespace topkv {

std::vector<double> log_probabilities(std::span<const float> logits) {
  const double high = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - high);
  std::vector<double> out;
  out.reserve(logits.size());
  for (const float x : logits) out.push_back(x - high - std::log(sum));
  return out;
}

}  // namespace topkv
