// Which entries a device is to choose by an index's key summaries (index/common/key_summaries.h),
// in float64 and from the papers' words, and how far a choice in float32 may be from that.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "index/common/key_summaries.h"
#include "src/core/math/convert.h"

namespace topkv::test {

/// Of one KV head, for queries as a device takes them: rounded to bf16 unless importances decide.
class WantedChoice {
 public:
  /// queries: [heads, dim].
  WantedChoice(const KeySummaries& of, const std::vector<float>& queries, double scale,
               PositionRange allowed, std::int64_t k)
      : of_(of),
        queries_(queries),
        heads_(static_cast<std::int64_t>(queries.size()) / of.dim),
        scale_(scale),
        allowed_(allowed),
        choice_(entry_choice(of, allowed, k)) {
    const std::int64_t slots =
        of.block > 0 ? (of.count + of.block - 1) / of.block * of.block : of.count;
    elements_.resize(
        static_cast<std::size_t>(slots * of.dim * (of.kind == KeySummaryKind::bounds ? 2 : 1)));
    to_float(of.data, of.kind == KeySummaryKind::centroids ? DType::f32 : DType::bf16,
             std::ssize(elements_), elements_.data());
    for (std::int64_t h = 0; h < heads_; ++h) score(h);
    if (of.kind == KeySummaryKind::components && heads_ > 1) weigh();
  }

  PositionRange among() const { return choice_.among; }
  std::int64_t count() const { return choice_.count; }
  /// 1 where heads choose together.
  std::int64_t lists() const { return std::ssize(ranked_); }

  /// ln Σ N_j exp(score_j) of a head, and what it may be off by.
  double log_sum(std::int64_t head) const { return log_sums_[static_cast<std::size_t>(head)]; }
  double error(std::int64_t list) const { return errors_[static_cast<std::size_t>(list)]; }

  /// Those of a list, ascending, as they should be.
  std::vector<std::int32_t> best(std::int64_t list) const {
    const auto& scores = ranked_[static_cast<std::size_t>(list)];
    std::vector<std::int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
      return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
    });
    order.resize(static_cast<std::size_t>(count()));
    std::sort(order.begin(), order.end());
    return order;
  }

  /// Fails the test unless as many as are wanted are chosen, each once, and none of them scores
  /// less than the last of the best but for what both may be off by.
  void expect(std::span<const std::int32_t> given, std::int64_t first, std::int64_t list) const {
    const auto& scores = ranked_[static_cast<std::size_t>(list)];
    std::set<std::int64_t> chosen;
    double least = std::numeric_limits<double>::infinity();
    for (const std::int32_t entry : given) {
      const std::int64_t at = first + entry - among().begin;
      ASSERT_GE(at, 0);
      ASSERT_LT(at, std::ssize(scores));
      chosen.insert(at);
      least = std::min(least, scores[static_cast<std::size_t>(at)]);
    }
    EXPECT_EQ(std::ssize(chosen), count());
    std::vector<double> order = scores;
    std::nth_element(order.begin(), order.begin() + (count() - 1), order.end(), std::greater<>());
    const double last = order[static_cast<std::size_t>(count() - 1)];
    EXPECT_GE(least, last - 2 * error(list)) << "list " << list;
  }

 private:
  double element(std::int64_t i) const { return elements_[static_cast<std::size_t>(i)]; }
  double query(std::int64_t head, std::int64_t i) const {
    return queries_[static_cast<std::size_t>(head * of_.dim + i)];
  }

  /// A sum of n products is off by 2^-24 of what they sum up to without signs, n + 2 times at most;
  /// centroids are rounded to bf16 unless importances decide, which is 2^-9 of each product. Those
  /// that are beside the allowed range come last.
  void score(std::int64_t head) {
    const std::vector<std::int64_t> components = read_components();
    double all = 0;
    double read = 0;
    for (std::int64_t i = 0; i < of_.dim; ++i) all += std::abs(query(head, i));
    for (const std::int64_t i : components) read += std::abs(query(head, i));
    std::vector<double> scores;
    double error = 0;
    double weights = 0;
    for (std::int64_t e = among().begin; e < among().end; ++e) {
      double sum = 0;
      double size = 0;
      const auto add = [&](double x) {
        sum += x;
        size += std::abs(x);
      };
      double factor = scale_;
      if (of_.kind == KeySummaryKind::bounds) {
        for (std::int64_t i = 0; i < of_.dim; ++i)
          add(std::max(query(head, i) * element(e * 2 * of_.dim + i),
                       query(head, i) * element(e * 2 * of_.dim + of_.dim + i)));
      } else if (of_.kind == KeySummaryKind::centroids) {
        for (std::int64_t i = 0; i < of_.dim; ++i) add(query(head, i) * element(e * of_.dim + i));
      } else {
        factor /= std::sqrt(read / all);
        for (const std::int64_t i : components)
          add(query(head, i) * element((e / of_.block * of_.dim + i) * of_.block + e % of_.block));
      }
      scores.push_back(factor * sum);
      if (of_.weighed) weights += of_.sizes[static_cast<std::size_t>(e)] * std::exp(factor * sum);
      if (of_.kind == KeySummaryKind::centroids && is_elsewhere(e))
        scores.back() = -std::numeric_limits<double>::infinity();
      const double rounded = of_.kind == KeySummaryKind::centroids && !of_.weighed ? 0x1p-9 : 0;
      const double terms = static_cast<double>(2 * of_.dim + 2);
      error = std::max(error, factor * size * (rounded + terms * 0x1p-23));
    }
    ranked_.push_back(std::move(scores));
    errors_.push_back(error);
    log_sums_.push_back(std::log(weights));
  }

  bool is_elsewhere(std::int64_t cluster) const {
    const auto at = static_cast<std::size_t>(2 * cluster);
    return of_.spans[at] >= allowed_.end || of_.spans[at + 1] < allowed_.begin;
  }

  /// Of the heads together (SparQ, algorithm 1): those with the largest sum of |q|.
  std::vector<std::int64_t> read_components() const {
    if (of_.kind != KeySummaryKind::components) return {};
    std::vector<double> sizes(static_cast<std::size_t>(of_.dim));
    for (std::int64_t h = 0; h < heads_; ++h) {
      for (std::int64_t i = 0; i < of_.dim; ++i)
        sizes[static_cast<std::size_t>(i)] += std::abs(query(h, i));
    }
    std::vector<std::int64_t> order(sizes.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
      return sizes[static_cast<std::size_t>(a)] > sizes[static_cast<std::size_t>(b)];
    });
    order.resize(static_cast<std::size_t>(of_.read));
    return order;
  }

  /// The sum of the heads' softmax weights. Scores e off, and a sum of weights as far off, make a
  /// weight 2 e off relatively; 3e-5 are fast exponentials of scores above -30, and sums.
  void weigh() {
    std::vector<double> sums(ranked_[0].size());
    double error = 0;
    for (std::size_t h = 0; h < ranked_.size(); ++h) {
      const double high = *std::max_element(ranked_[h].begin(), ranked_[h].end());
      double total = 0;
      for (const double score : ranked_[h]) total += std::exp(score - high);
      for (std::size_t i = 0; i < sums.size(); ++i)
        sums[i] += std::exp(ranked_[h][i] - high) / total;
      error = std::max(error, errors_[h]);
    }
    std::vector<double> order = sums;
    std::nth_element(order.begin(), order.begin() + (count() - 1), order.end(), std::greater<>());
    errors_ = {order[static_cast<std::size_t>(count() - 1)] * (2 * error + 3e-5)};
    ranked_ = {std::move(sums)};
  }

  const KeySummaries& of_;
  std::vector<float> queries_;
  std::int64_t heads_;
  double scale_;
  PositionRange allowed_;
  EntryChoice choice_;
  std::vector<float> elements_;
  std::vector<std::vector<double>> ranked_;  // per list: what entries are ranked by
  std::vector<double> errors_;
  std::vector<double> log_sums_;  // per head
};

}  // namespace topkv::test
