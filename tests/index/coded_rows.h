// Rows whose codes make a tail, and what that must be in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

#include "index/codes/code_tail.h"
#include "index/codes/codes_index.h"
#include "tests/support/reference.h"

namespace topkv::test {

inline constexpr float no_ceiling = std::numeric_limits<float>::infinity();

/// Rows with an index of codes and its tail, and what codes stand for. Values of 0 bytes: their
/// mean. correlated: above 0, keys vary alike in all directions, but less in the second half of the
/// dims. Codes of 8 bytes have no bits for that half. The first half of a value has this factor
/// times that half of its key.
struct Coded {
  Coded(std::int64_t count, std::int64_t dim, CodesParams params = {}, float key_size = 2,
        float correlated = 0)
      : count(count),
        dim(dim),
        keys(reference::some_vectors(count, dim, 1)),
        values(reference::some_vectors(count, dim, 2)) {
    for (float& x : keys) x *= key_size;
    for (std::int64_t i = 0; i < count * dim; ++i) {  // values have a mean
      values[static_cast<std::size_t>(i)] += std::cos(static_cast<float>(i % dim));
    }
    if (correlated > 0) {
      keys = reference::random_floats(count * dim, 1, key_size);
      values = reference::random_floats(count * dim, 2, 1);
    }
    for (std::int64_t i = 0; correlated > 0 && i < count * dim; ++i) {
      if (i % dim < dim / 2) continue;
      const auto at = static_cast<std::size_t>(i);
      keys[at] *= 0.8F;
      values[at - static_cast<std::size_t>(dim / 2)] += correlated * keys[at];
    }
    const auto view = [&](const std::vector<float>& of) {
      return KeyView{reinterpret_cast<const std::byte*>(of.data()), DType::f32, count, dim,
                     dim * 4};
    };
    rows = {view(keys), view(values)};
    index = std::make_unique<CodesIndex>(params);
    index->add(rows.keys, {});
    index->build({});
    const std::int64_t bits = 8 * params.value_bytes * ((dim + 127) / 128);
    tail = std::make_unique<CodeTail>(*index, rows, bits, std::stop_token{});
    values_coder = ValueCoder(rows.values, bits);
    value_codes.resize(static_cast<std::size_t>(values_coder.bytes_for(count)));
    values_coder.encode(rows.values, 0, count, value_codes.data());
  }

  bool is_rare(std::int64_t row) const { return std::ranges::binary_search(index->rare(), row); }

  std::vector<double> mean_value() const {
    std::vector<double> mean(static_cast<std::size_t>(dim));
    for (std::size_t i = 0; i < values.size(); ++i) mean[i % mean.size()] += values[i];
    for (double& x : mean) x /= static_cast<double>(count);
    return mean;
  }

  /// The rows as codes stand for them, the rare ones as they are.
  reference::Rows decoded() const {
    reference::Rows out;
    out.dim = dim;
    std::vector<float> row(static_cast<std::size_t>(dim));
    const std::vector<double> mean = mean_value();
    const auto append = [&](std::vector<double>& to, const float* from) {
      to.insert(to.end(), from, from + dim);
    };
    for (std::int64_t i = 0; i < count; ++i) {
      if (is_rare(i)) {
        append(out.keys, keys.data() + i * dim);
        append(out.values, values.data() + i * dim);
        continue;
      }
      index->coder().decode(index->codes(), i, row.data());
      append(out.keys, row.data());
      if (index->params().value_bytes == 0) {
        out.values.insert(out.values.end(), mean.begin(), mean.end());
        continue;
      }
      values_coder.decode(value_codes.data(), i, row.data());
      append(out.values, row.data());
    }
    return out;
  }

  std::int64_t count, dim;
  std::vector<float> keys, values;
  RowsView rows;
  std::unique_ptr<CodesIndex> index;
  std::unique_ptr<CodeTail> tail;
  ValueCoder values_coder;
  std::vector<std::uint8_t> value_codes;
};

struct Tail {
  double lse = 0;
  std::vector<double> out;
};

/// Attention over rows in float64, codes' masses multiplied by exp(variance / 2) and what the
/// ceiling leaves of it.
inline Tail expected(const Coded& coded, const reference::Rows& rows, const float* q, double scale,
                     double softcap, double variance, double ceiling, PositionRange allowed,
                     const std::set<std::int64_t>& taken) {
  Tail tail;
  tail.out.assign(static_cast<std::size_t>(rows.dim), 0.0);
  std::vector<std::pair<double, std::int64_t>> scored;
  double high = -1e300;
  for (std::int64_t r = allowed.begin; r < std::min(allowed.end, coded.count); ++r) {
    if (taken.contains(r)) continue;
    double score = scale * reference::score(rows, q, r);
    if (softcap > 0) score = softcap * std::tanh(score / softcap);
    if (!coded.is_rare(r)) {
      if (variance > 0) {
        const double s = std::sqrt(variance);
        const double x = std::min(ceiling - score, 1e9);
        score += variance / 2 +
                 std::log(reference::normal_cdf((x - variance) / s) / reference::normal_cdf(x / s));
      } else {
        score = std::min(score, ceiling);
      }
    }
    scored.emplace_back(score, r);
    high = std::max(high, score);
  }
  double total = 0;
  for (const auto& [score, r] : scored) {
    const double weight = std::exp(score - high);
    total += weight;
    for (std::int64_t j = 0; j < rows.dim; ++j) {
      tail.out[static_cast<std::size_t>(j)] +=
          weight * rows.values[static_cast<std::size_t>(r * rows.dim + j)];
    }
  }
  for (double& x : tail.out) x /= total;
  tail.lse = high + std::log(total);
  return tail;
}

/// Queries of a tail: all rows with none taken, a part, a few.
struct TailQueries {
  static constexpr std::int64_t count = 3;

  explicit TailQueries(const Coded& coded)
      : scale(1.0F / std::sqrt(static_cast<float>(coded.dim))),
        q(reference::random_floats(count * coded.dim, 7, 1.0F)),
        allowed{{0, coded.count}, {5, coded.count - 77}, {1300, 1311}} {
    for (const auto& set : taken) lists.emplace_back(set.begin(), set.end());
    for (const auto& list : lists) spans.emplace_back(list);
  }
  TailQueries(const TailQueries&) = delete;  // spans are of its own lists

  float scale;
  std::vector<float> q;
  std::vector<PositionRange> allowed;
  std::vector<std::set<std::int64_t>> taken = {{}, {5, 6, 100, 2000, 2923}, {1305}};
  std::vector<std::vector<std::int64_t>> lists;
  std::vector<std::span<const std::int64_t>> spans;
  std::vector<float> ceilings = {no_ceiling, 1.0F, 0.4F};
};

/// Both parts of a tail as one.
inline void attend(const RowTail& tail, const QueryBlock& queries,
                   std::span<const std::span<const std::int64_t>> taken,
                   std::span<const float> ceilings, float scale, float softcap, PartialView out) {
  Partial estimate(queries.count, queries.dim);
  std::vector<TailNoise> noise(static_cast<std::size_t>(queries.count));
  tail.attend(queries, taken, ceilings, scale, softcap, {estimate.view(), out, noise.data()});
  merge(out, estimate.view());
}

}  // namespace topkv::test
