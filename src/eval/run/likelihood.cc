#include "src/eval/run/likelihood.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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

Spread spread_of(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  const auto percentile = [&](double part) {
    const double at = part * static_cast<double>(numbers.size() - 1);
    const auto below = static_cast<std::size_t>(at);
    const std::size_t above = std::min(below + 1, numbers.size() - 1);
    return std::lerp(numbers[below], numbers[above], at - static_cast<double>(below));
  };
  const double sum = std::accumulate(numbers.begin(), numbers.end(), 0.0);
  return {.mean = sum / static_cast<double>(numbers.size()),
          .median = percentile(0.5),
          .p90 = percentile(0.9),
          .p95 = percentile(0.95),
          .p99 = percentile(0.99),
          .most = numbers.back()};
}

void PredictionDifference::add(const std::vector<double>& dense, const std::vector<double>& found,
                               std::optional<std::int64_t> next) {
  kl.push_back(divergence(dense, found));
  same_top += most_likely(dense) == most_likely(found) ? 1 : 0;
  if (!next) return;
  const auto token = static_cast<std::size_t>(*next);
  delta_p.push_back(std::exp(found[token]) - std::exp(dense[token]));
}

double PredictionDifference::agreement() const {
  return kl.empty() ? 0 : static_cast<double>(same_top) / static_cast<double>(kl.size());
}

double PredictionDifference::mean_delta_p() const {
  if (delta_p.empty()) return 0;
  return std::accumulate(delta_p.begin(), delta_p.end(), 0.0) / static_cast<double>(delta_p.size());
}

double PredictionDifference::rms_delta_p() const {
  if (delta_p.empty()) return 0;
  const double squares = std::inner_product(delta_p.begin(), delta_p.end(), delta_p.begin(), 0.0);
  return std::sqrt(squares / static_cast<double>(delta_p.size()));
}

}  // namespace topkv
