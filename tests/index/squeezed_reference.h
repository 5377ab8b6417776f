// Squeezed Attention's importances in float64, written from the paper, over clusters as an index
// has them; and some heads that are clustered.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "index/methods/squeezed_index.h"
#include "tests/support/key_cases.h"

namespace topkv::test {

inline constexpr std::int64_t dim = 32;
inline constexpr std::int64_t group = 2;
inline constexpr double scale = 0.2;
inline constexpr double rounding = 1e-3;  // of exponentials of float32 scores of some tens

struct Reference {
  struct Level {
    std::vector<std::vector<double>> centroids;
    std::vector<double> keys;
  };

  /// two: the index has two levels.
  Reference(const Keys& keys, const SqueezedIndex& index, bool two) {
    const Grouping grouping = index.grouping();
    members.resize(static_cast<std::size_t>(grouping.groups));
    for (std::int64_t row = 0; row < keys.count; ++row)
      members[static_cast<std::size_t>(grouping.of(row))].push_back(row);
    for (const auto& rows : members) {
      std::vector<double> mean(static_cast<std::size_t>(dim));
      for (const std::int64_t row : rows) {
        for (std::size_t j = 0; j < mean.size(); ++j)
          mean[j] += keys.values[static_cast<std::size_t>(row * dim) + j];
      }
      for (double& x : mean) x /= static_cast<double>(rows.size());
      fine.centroids.push_back(mean);
      fine.keys.push_back(static_cast<double>(rows.size()));
    }
    if (!two) return;
    std::map<std::int64_t, std::vector<std::size_t>> of_coarse;
    for (std::size_t c = 0; c < members.size(); ++c) {
      coarse_of.push_back(static_cast<std::size_t>(index.coarse_of(static_cast<std::int64_t>(c))));
      of_coarse[static_cast<std::int64_t>(coarse_of.back())].push_back(c);
    }
    for (const auto& [number, clusters] : of_coarse) {
      EXPECT_EQ(number, std::ssize(coarse.keys));  // none is empty
      std::vector<double> mean(static_cast<std::size_t>(dim));
      double count = 0;
      for (const std::size_t c : clusters) {
        for (std::size_t j = 0; j < mean.size(); ++j)
          mean[j] += fine.centroids[c][j] / static_cast<double>(clusters.size());
        count += fine.keys[c];
      }
      coarse.centroids.push_back(mean);
      coarse.keys.push_back(count);
    }
  }

  /// Equation 1 over the clusters that are looked at, averaged over queries; 0 of the others.
  static std::vector<double> importances(const Level& level,
                                         const std::vector<const float*>& queries,
                                         const std::vector<bool>& looked_at) {
    std::vector<double> average(level.keys.size());
    for (const float* q : queries) {
      std::vector<double> terms(level.keys.size());
      double sum = 0;
      for (std::size_t c = 0; c < terms.size(); ++c) {
        if (!looked_at[c]) continue;
        double score = 0;
        for (std::size_t j = 0; j < level.centroids[c].size(); ++j)
          score += double{q[j]} * level.centroids[c][j];
        terms[c] = std::exp(scale * score);
        sum += level.keys[c] * terms[c];
      }
      for (std::size_t c = 0; c < terms.size(); ++c)
        average[c] += terms[c] / sum / static_cast<double>(queries.size());
    }
    return average;
  }
  std::vector<double> coarse_importances(const std::vector<const float*>& queries) const {
    return importances(coarse, queries, std::vector<bool>(coarse.keys.size(), true));
  }
  /// Clusters whose coarse one is above a threshold are looked at; sure: none is near it.
  std::vector<bool> survivors(const std::vector<const float*>& queries, double threshold,
                              bool& sure) const {
    std::vector<bool> survive(members.size(), true);
    sure = true;
    if (coarse.keys.empty()) return survive;
    const std::vector<double> of = coarse_importances(queries);
    for (const double importance : of)
      sure = sure && std::abs(importance - threshold) > rounding * threshold;
    for (std::size_t c = 0; c < survive.size(); ++c) survive[c] = of[coarse_of[c]] > threshold;
    return survive;
  }

  std::vector<std::vector<std::int64_t>> members;
  std::vector<std::size_t> coarse_of;
  Level fine, coarse;
};

/// The importance that the first so many bins are above: bins end half-way between whole
/// logarithms.
inline double value_of(std::int64_t bins) {
  return std::exp2(-(static_cast<double>(bins) - 0.5) / 64);
}

/// Keys of two KV heads, and queries of the last tokens, which they learn from.
struct Heads {
  explicit Heads(const SqueezedParams& params, std::int64_t observed = 40) {
    for (unsigned head = 0; head < 2; ++head) {
      keys.push_back(make_keys(clustered(3000, dim, 20 + head), dim, DType::bf16));
      last.push_back(make_queries(keys.back(), observed * group, everything, 30 + head));
      indices.push_back(std::make_unique<SqueezedIndex>(params));
      indices.back()->add(keys.back().view(), {});
      indices.back()->build({});
      all.push_back(indices.back().get());
    }
    positions.resize(static_cast<std::size_t>(observed));
    std::iota(positions.begin(), positions.end(), 3000 - observed);
  }
  void learn() {
    for (std::size_t head = 0; head < 2; ++head) {
      indices[head]->learn({.positions = positions,
                            .data = last[head].data.data(),
                            .group = group,
                            .dim = dim,
                            .scale = static_cast<float>(scale)});
    }
    SqueezedIndex::calibrate(all, {});
  }
  /// Queries of a KV head's head number of_group: of each of the last tokens, or of all as one
  /// question.
  std::vector<std::vector<const float*>> observed(std::size_t head, std::int64_t of_group,
                                                  bool question) const {
    std::vector<std::vector<const float*>> out;
    for (std::int64_t t = 0; t < std::ssize(positions); ++t) {
      if (t == 0 || !question) out.emplace_back();
      out.back().push_back(last[head].query(t * group + of_group));
    }
    return out;
  }

  std::vector<Keys> keys;
  std::vector<Queries> last;
  std::vector<std::int64_t> positions;
  std::vector<std::unique_ptr<SqueezedIndex>> indices;
  std::vector<SqueezedIndex*> all;
};

}  // namespace topkv::test
