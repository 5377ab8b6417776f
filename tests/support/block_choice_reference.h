// The choice of a sparse prefill in float64 by plain loops, sharing no code with the library
// (src/attention/block_choice.h says what is chosen).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "tests/support/token_stream.h"

namespace test {

struct ChoiceRules {
  std::int64_t window = 0, sinks = 0;  // tokens
  std::int64_t most = 0, least = 0;    // keys, multiples of 64
  double mass = 1;
};

struct ReferenceChoice {
  std::set<std::int64_t> blocks;  // of 64 keys
  double mass = 1;
  /// How decided the choice was: the least difference between a share that was taken and one that
  /// was not, relative to the larger one. Rounding decides below some 1e-5.
  double margin = 1;
};

/// Of the tokens [begin, end) of a stream, in one block of 128 positions, for one KV head.
inline ReferenceChoice reference_choice(const TokenStream& stream, std::int64_t layer,
                                        std::int64_t kv_head, std::int64_t begin, std::int64_t end,
                                        const ChoiceRules& rules) {
  const topkv::AttentionShape& shape = stream.shape;
  const reference::Rows& rows = stream.rows(layer, kv_head);
  const std::int64_t dim = shape.head_dim;
  const double scale = shape.softmax_scale();
  const auto capped = [&](double x) {
    return shape.softcap > 0 ? shape.softcap * std::tanh(scale * x / shape.softcap) : scale * x;
  };
  const auto dot = [&](const float* q, const double* k) {
    double sum = 0;
    for (std::int64_t j = 0; j < dim; ++j) sum += q[j] * k[j];
    return sum;
  };
  const std::int64_t last = (end - 1) / 64;
  const std::int64_t sinks = (rules.sinks + 63) / 64;
  const std::int64_t local =
      std::max(sinks, std::max<std::int64_t>(0, begin - rules.window + 1) / 64);
  ReferenceChoice choice;
  const std::int64_t candidates = local - sinks;
  if (candidates * 64 <= (rules.mass < 1 ? rules.least : rules.most)) {
    for (std::int64_t b = 0; b <= last; ++b) choice.blocks.insert(b);
    return choice;
  }
  struct Sample {
    std::int64_t token, head;
  };
  std::vector<Sample> samples;
  const std::int64_t n = end - begin;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(16, n); ++i) {
    const std::int64_t token = begin + (n <= 16 ? i : (2 * i + 1) * n / 32);
    for (std::int64_t g = 0; g < shape.group(); ++g)
      samples.push_back({token, kv_head * shape.group() + g});
  }
  std::vector<double> shares(static_cast<std::size_t>(candidates));
  std::vector<std::vector<double>> coarse;  // exp of scores of mean keys
  for (const Sample& s : samples) {
    std::vector<double> weights;
    for (std::int64_t b = sinks; b < local; ++b) {
      std::vector<double> mean(static_cast<std::size_t>(dim));
      for (std::int64_t x = b * 64; x < (b + 1) * 64; ++x) {
        for (std::int64_t j = 0; j < dim; ++j)
          mean[static_cast<std::size_t>(j)] +=
              rows.keys[static_cast<std::size_t>(x * dim + j)] / 64;
      }
      weights.push_back(
          std::exp(capped(dot(stream.query(layer, s.token, s.head, b * 64), mean.data()))));
    }
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (std::size_t b = 0; b < weights.size(); ++b) shares[b] += weights[b] / sum;
    coarse.push_back(std::move(weights));
  }
  const auto order_of = [](const std::vector<double>& values) {
    std::vector<std::int64_t> order(values.size());
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
    });
    return order;
  };
  const auto note_margin = [&](const std::vector<double>& values,
                               const std::vector<std::int64_t>& order, std::size_t taken) {
    if (taken == 0 || taken >= order.size()) return;
    const double in = values[static_cast<std::size_t>(order[taken - 1])];
    const double out = values[static_cast<std::size_t>(order[taken])];
    choice.margin = std::min(choice.margin, (in - out) / in);
  };
  const std::vector<std::int64_t> by_mean = order_of(shares);
  const auto kept = static_cast<std::size_t>(std::min(candidates, 4 * rules.most / 64));
  note_margin(shares, by_mean, kept);

  std::vector<double> masses(kept);
  double met = 0;
  for (std::size_t s = 0; s < samples.size(); ++s) {
    const auto weight = [&](std::int64_t row) {
      return std::exp(capped(dot(stream.query(layer, samples[s].token, samples[s].head, row),
                                 &rows.keys[static_cast<std::size_t>(row * dim)])));
    };
    double always = 0;
    for (std::int64_t row = 0; row <= samples[s].token; ++row)
      if (row / 64 < sinks || row / 64 >= local) always += weight(row);
    std::vector<double> of(kept);
    double total = always;
    for (std::size_t b = 0; b < by_mean.size(); ++b) {
      if (b >= kept) {
        total += 64 * coarse[s][static_cast<std::size_t>(by_mean[b])];
        continue;
      }
      for (std::int64_t i = 0; i < 64; ++i) of[b] += weight((by_mean[b] + sinks) * 64 + i);
      total += of[b];
    }
    for (std::size_t b = 0; b < kept; ++b)
      masses[b] += of[b] / total / static_cast<double>(samples.size());
    met += always / total / static_cast<double>(samples.size());
  }
  const std::vector<std::int64_t> by_mass = order_of(masses);
  std::size_t taken = 0;
  while (taken < by_mass.size() && static_cast<std::int64_t>(taken) * 64 < rules.most) {
    const bool enough = static_cast<std::int64_t>(taken) * 64 >= rules.least && rules.mass < 1;
    if (enough) choice.margin = std::min(choice.margin, std::abs(met - rules.mass));
    if (enough && met >= rules.mass) break;
    const auto block = static_cast<std::size_t>(by_mass[taken++]);
    met += masses[block];
    choice.blocks.insert(by_mean[block] + sinks);
  }
  note_margin(masses, by_mass, taken);
  choice.mass = met;
  for (std::int64_t b = 0; b < sinks; ++b) choice.blocks.insert(b);
  for (std::int64_t b = local; b <= last; ++b) choice.blocks.insert(b);
  return choice;
}

}  // namespace test
