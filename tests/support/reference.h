// Attention in float64 by plain loops, sharing no code with the library: what every fast path is
// compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace reference {

/// K and V of one (layer, KV head): [rows, dim] each, the values as stored (already rounded).
struct Rows {
  std::vector<double> keys, values;
  std::int64_t dim = 0;

  std::int64_t count() const { return static_cast<std::int64_t>(keys.size()) / dim; }
};

struct Result {
  std::vector<double> out;
  double lse = -std::numeric_limits<double>::infinity();
};

inline double score(const Rows& rows, const float* query, std::int64_t row) {
  double sum = 0;
  for (std::int64_t j = 0; j < rows.dim; ++j)
    sum += double{query[j]} * rows.keys[row * rows.dim + j];
  return sum;
}

/// Softmax attention of one query over the rows for which visible(row).
/// softcap: a scaled score s becomes softcap * tanh(s / softcap); 0: stays as it is.
inline Result attend(const Rows& rows, const float* query, double scale,
                     const std::function<bool(std::int64_t)>& visible, double softcap = 0) {
  const auto logit = [&](std::int64_t row) {
    const double scaled = scale * score(rows, query, row);
    return softcap == 0 ? scaled : softcap * std::tanh(scaled / softcap);
  };
  Result result;
  result.out.assign(static_cast<std::size_t>(rows.dim), 0.0);
  double high = -std::numeric_limits<double>::infinity();
  for (std::int64_t r = 0; r < rows.count(); ++r) {
    if (visible(r)) high = std::max(high, logit(r));
  }
  if (std::isinf(high)) return result;
  double sum = 0;
  for (std::int64_t r = 0; r < rows.count(); ++r) {
    if (!visible(r)) continue;
    const double weight = std::exp(logit(r) - high);
    sum += weight;
    for (std::int64_t j = 0; j < rows.dim; ++j)
      result.out[j] += weight * rows.values[r * rows.dim + j];
  }
  for (double& x : result.out) x /= sum;
  result.lse = high + std::log(sum);
  return result;
}

/// The k keys of [row, score], by the largest scores.
inline std::set<std::int64_t> best_of(const std::map<std::int64_t, double>& scores,
                                      std::int64_t k) {
  std::vector<std::pair<double, std::int64_t>> sorted;
  for (const auto& [row, score] : scores) sorted.push_back({-score, row});
  std::sort(sorted.begin(), sorted.end());
  std::set<std::int64_t> rows;
  for (const auto& [score, row] : sorted) {
    if (static_cast<std::int64_t>(rows.size()) < k) rows.insert(row);
  }
  return rows;
}

/// The k rows among [begin, end) with the largest score. For several queries: of the k best of any
/// of them those whose softmax weights, over all of these, add up to most.
inline std::set<std::int64_t> best_rows(const Rows& rows, const std::vector<const float*>& queries,
                                        std::int64_t begin, std::int64_t end, std::int64_t k,
                                        double scale, double softcap) {
  std::map<const float*, std::map<std::int64_t, double>> scores;
  std::set<std::int64_t> any;
  for (const float* query : queries) {
    for (std::int64_t row = begin; row < end; ++row) scores[query][row] = score(rows, query, row);
    any.merge(best_of(scores[query], k));
  }
  if (queries.size() == 1) return any;
  std::map<std::int64_t, double> weights;
  for (const float* query : queries) {
    const auto weight = [&](std::int64_t row) {
      const double x = scale * scores[query][row];
      return std::exp(softcap > 0 ? softcap * std::tanh(x / softcap) : x);
    };
    double whole = 0;
    for (const std::int64_t row : any) whole += weight(row);
    for (const std::int64_t row : any) weights[row] += weight(row) / whole;
  }
  return best_of(weights, k);
}

inline std::vector<float> random_floats(std::int64_t count, unsigned seed, float size = 1.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, size);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) x = normal(random);
  return out;
}

/// x with its mantissa cut to bf16's 7 bits (exact in bf16), so that storing loses nothing.
inline float as_bf16(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
}

inline std::vector<float> random_bf16(std::int64_t count, unsigned seed, float size = 1.0F) {
  auto out = random_floats(count, seed, size);
  for (float& x : out) x = as_bf16(x);
  return out;
}

/// Vectors that vary most along a few directions, `axes` of them at most.
inline std::vector<float> some_vectors(std::int64_t count, std::int64_t dim, unsigned seed,
                                       float largest = 1.0F, std::int64_t axes = 1 << 20) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> directions(static_cast<std::size_t>(dim * dim));
  for (float& x : directions) x = normal(random) / std::sqrt(static_cast<float>(dim));
  std::vector<float> out(static_cast<std::size_t>(count * dim));
  for (std::int64_t i = 0; i < count; ++i) {
    float size = largest;
    for (std::int64_t a = 0; a < std::min(dim, axes); ++a, size *= 0.93F) {
      const float x = size * normal(random);
      for (std::int64_t j = 0; j < dim; ++j) {
        out[static_cast<std::size_t>(i * dim + j)] +=
            x * directions[static_cast<std::size_t>(a * dim + j)];
      }
    }
  }
  return out;
}

/// The normal distribution.
inline double normal_cdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

/// |a - b| / |b|
inline double distance(const std::vector<std::vector<float>>& a,
                       const std::vector<std::vector<float>>& b) {
  double off = 0;
  double size = 0;
  for (std::size_t l = 0; l < a.size(); ++l) {
    for (std::size_t i = 0; i < a[l].size(); ++i) {
      off += (static_cast<double>(a[l][i]) - b[l][i]) * (static_cast<double>(a[l][i]) - b[l][i]);
      size += static_cast<double>(b[l][i]) * b[l][i];
    }
  }
  return std::sqrt(off / size);
}

}  // namespace reference
