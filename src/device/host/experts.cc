#include "src/device/host/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "src/core/math/vector_math.h"

namespace topkv {

namespace {

constexpr float lowest = -std::numeric_limits<float>::infinity();

/// The k largest values, the largest first. Insertion into the list of the best so far: equal ones
/// stay behind those that came before.
template <class Value>
void choose_largest(std::int64_t count, std::int64_t k, const Value& value, std::int32_t* ids) {
  std::int64_t chosen = 0;
  for (std::int64_t e = 0; e < count; ++e) {
    std::int64_t at = chosen;
    while (at > 0 && value(ids[at - 1]) < value(e)) --at;
    if (at == k) continue;
    chosen = std::min(chosen + 1, k);
    for (std::int64_t i = chosen - 1; i > at; --i) ids[i] = ids[i - 1];
    ids[at] = static_cast<std::int32_t>(e);
  }
}

float router_sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

/// Leaves the values of the groups that score highest, and makes all others the lowest.
void keep_best_groups(const Routing& routing, std::vector<float>& values) {
  const std::int64_t size = routing.experts / routing.groups;
  thread_local std::vector<float> scores;
  thread_local std::vector<std::int32_t> chosen;
  scores.assign(static_cast<std::size_t>(routing.groups), 0);
  for (std::int64_t g = 0; g < routing.groups; ++g) {
    float first = lowest;
    float second = lowest;
    for (std::int64_t e = g * size; e < (g + 1) * size; ++e) {
      const float value = values[static_cast<std::size_t>(e)];
      second = std::max(second, std::min(first, value));
      first = std::max(first, value);
    }
    scores[static_cast<std::size_t>(g)] = routing.sigmoid ? first + second : first;
  }
  chosen.resize(static_cast<std::size_t>(routing.chosen_groups));
  choose_largest(
      routing.groups, routing.chosen_groups,
      [&](std::int64_t g) { return scores[static_cast<std::size_t>(g)]; }, chosen.data());
  for (std::int64_t g = 0; g < routing.groups; ++g) {
    if (std::ranges::find(chosen, static_cast<std::int32_t>(g)) != chosen.end()) continue;
    std::fill_n(values.begin() + g * size, size, lowest);
  }
}

}  // namespace

void choose_experts(const float* scores, const Routing& routing, std::int32_t* ids,
                    float* weights) {
  thread_local std::vector<float> values;  // by which experts are chosen
  values.resize(static_cast<std::size_t>(routing.experts));
  for (std::int64_t e = 0; e < routing.experts; ++e) {
    float value = routing.sigmoid ? router_sigmoid(scores[e]) : scores[e];
    if (routing.choice_bias != nullptr) value += routing.choice_bias[e];
    values[static_cast<std::size_t>(e)] = std::isnan(value) ? lowest : value;
  }
  if (routing.groups > 1) keep_best_groups(routing, values);
  choose_largest(
      routing.experts, routing.k,
      [&](std::int64_t e) { return values[static_cast<std::size_t>(e)]; }, ids);
  float sum = 0;
  if (routing.sigmoid) {
    for (std::int64_t i = 0; i < routing.k; ++i) sum += weights[i] = router_sigmoid(scores[ids[i]]);
    return scale_by(
        weights, routing.k,
        routing.sums_to_one ? routing.scale / (sum + routing.least_sum) : routing.scale);
  }
  const float high = scores[ids[0]];
  for (std::int64_t i = 0; i < routing.k; ++i) {
    weights[i] = std::exp(scores[ids[i]] - high);
    sum += weights[i];
  }
  if (routing.over_all) {
    sum = 0;
    for (std::int64_t e = 0; e < routing.experts; ++e) sum += std::exp(scores[e] - high);
  }
  scale_by(weights, routing.k, routing.scale / sum);
}

void attend_sinks(const float* sinks, const float* lse, std::int64_t heads, std::int64_t head_dim,
                  float* x) {
  // exp overflows to infinity where the sink takes all, also where no key was seen.
  for (std::int64_t h = 0; h < heads; ++h)
    scale_by(x + h * head_dim, head_dim, 1 / (1 + std::exp(sinks[h] - lse[h])));
}

void SortedSlots::sort(std::span<const std::int32_t> experts, std::int64_t count) {
  ends.assign(static_cast<std::size_t>(count), 0);
  for (const std::int32_t e : experts) ++ends[static_cast<std::size_t>(e)];
  std::int64_t first = 0;
  for (std::int64_t& end : ends) {  // becomes where each begins
    const std::int64_t rows = end;
    end = first;
    first += rows;
  }
  slots.resize(experts.size());
  places.resize(experts.size());
  for (std::size_t s = 0; s < experts.size(); ++s) {
    const std::int64_t row = ends[static_cast<std::size_t>(experts[s])]++;
    slots[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(s);
    places[s] = static_cast<std::int32_t>(row);
  }
}

void multiply_each_expert(ComputeDevice& device, std::span<const ExpertProduct> all,
                          const std::byte* x, std::int64_t sharing, const ExpertRows& rows) {
  for (const ExpertProduct& product : all) {
    const Matrix& form = product.weights->form;
    const std::int64_t in_bytes = form.in_features * bytes_of(device.operand_dtype());
    // Sorted rows have one of x each.
    each_expert(rows, [&](std::int64_t expert, std::int64_t first, std::int64_t count) {
      float* const to = product.out + first * form.out_features;
      device.matmul(product.weights->of(expert), x + first / sharing * in_bytes, count, false, to);
      if (product.biases != nullptr)
        device.add_bias(product.biases + expert * form.out_features, count, form.out_features, to);
    });
  }
}

}  // namespace topkv
