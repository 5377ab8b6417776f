// Keys and queries for tests of indices, and what every result must satisfy, against a float64
// brute force that shares no code with the library.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "src/core/math/convert.h"
#include "topkv/key_index.h"

namespace topkv::test {

inline constexpr PositionRange everything{0, std::int64_t{1} << 62};

/// Rows [K | V], keys with a stride; V and the bytes after the last row are NaN patterns, so
/// that an index that reads beyond a key finds nonsense.
struct Keys {
  std::vector<std::byte> memory;
  std::vector<double> values;  // [count, dim], as stored
  DType dtype = DType::bf16;
  std::int64_t count = 0;
  std::int64_t dim = 0;
  std::int64_t stride = 0;
  std::int64_t offset = 0;

  KeyView view(std::int64_t first, std::int64_t end) const {
    return {memory.data() + offset + first * stride, dtype, end - first, dim, stride};
  }
  KeyView view() const { return view(0, count); }
};

/// A mixture of Gaussians of unequal norm, a few keys that everybody likes, and duplicates: keys of
/// attention heads are of this kind.
inline std::vector<float> clustered(std::int64_t count, std::int64_t dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const std::int64_t clusters = 40;
  std::vector<float> centres(static_cast<std::size_t>(clusters * dim));
  for (float& x : centres) x = normal(random);
  std::vector<float> out(static_cast<std::size_t>(count * dim));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto cluster = static_cast<std::int64_t>(random() % static_cast<unsigned>(clusters));
    const float size = 0.5F + static_cast<float>(random() % 100) / 100.0F;
    for (std::int64_t j = 0; j < dim; ++j) {
      const float centre = centres[static_cast<std::size_t>(cluster * dim + j)];
      out[static_cast<std::size_t>(i * dim + j)] = size * (centre + 0.7F * normal(random));
    }
  }
  return out;
}

inline Keys make_keys(const std::vector<float>& source, std::int64_t dim, DType dtype,
                      std::int64_t offset = 0) {
  Keys keys;
  keys.dtype = dtype;
  keys.dim = dim;
  keys.count = static_cast<std::int64_t>(source.size()) / dim;
  keys.offset = offset;
  const std::int64_t bytes = dim * bytes_of(dtype);
  keys.stride = 2 * bytes;
  keys.memory.assign(static_cast<std::size_t>(offset + keys.count * keys.stride + 256),
                     std::byte{0xFF});
  keys.values.resize(source.size());
  std::vector<float> stored(static_cast<std::size_t>(dim));
  for (std::int64_t i = 0; i < keys.count; ++i) {
    std::byte* key = keys.memory.data() + offset + i * keys.stride;
    from_float(source.data() + i * dim, dim, dtype, key);
    to_float(key, dtype, dim, stored.data());
    for (std::int64_t j = 0; j < dim; ++j) {
      keys.values[static_cast<std::size_t>(i * dim + j)] = stored[static_cast<std::size_t>(j)];
    }
  }
  return keys;
}

inline double score(const Keys& keys, const float* query, std::int64_t position) {
  double sum = 0;
  for (std::int64_t j = 0; j < keys.dim; ++j) {
    sum += double{query[j]} * keys.values[static_cast<std::size_t>(position * keys.dim + j)];
  }
  return sum;
}

/// What the products of q·k sum up to without their signs.
inline double magnitude(const Keys& keys, const float* query, std::int64_t position) {
  double sum = 0;
  for (std::int64_t j = 0; j < keys.dim; ++j) {
    sum +=
        std::abs(double{query[j]} * keys.values[static_cast<std::size_t>(position * keys.dim + j)]);
  }
  return sum;
}

/// Whether some sum of products may leave float32, so that q·k may be infinite, or NaN.
inline bool may_overflow(const Keys& keys, const float* query, std::int64_t position) {
  return magnitude(keys, query, position) > double{std::numeric_limits<float>::max()} / 2;
}

/// A bound on the float32 rounding error of q·k; denormal elements and products may become 0, and
/// so may those of the three bf16 parts that a query is scored by in matrix tiles (tile_dot.h).
inline double score_tolerance(const Keys& keys, const float* query, std::int64_t position) {
  double flushed = 0;
  for (std::int64_t j = 0; j < keys.dim; ++j) {
    const double key = keys.values[static_cast<std::size_t>(position * keys.dim + j)];
    flushed += (std::abs(double{query[j]}) + 3 * std::abs(key) + 1) * 0x1p-126;
  }
  return magnitude(keys, query, position) * static_cast<double>(keys.dim) * 0x1p-24 + flushed;
}

/// The k-th largest score within a range: what a result of recall 1 does not fall below.
inline double kth_score(const Keys& keys, const float* query, PositionRange range, std::int64_t k) {
  std::vector<double> all;
  for (std::int64_t i = range.begin; i < range.end; ++i) all.push_back(score(keys, query, i));
  std::nth_element(all.begin(), all.begin() + (k - 1), all.end(), std::greater<>());
  return all[static_cast<std::size_t>(k - 1)];
}

struct Queries {
  std::vector<float> data;
  std::vector<PositionRange> allowed;
  std::int64_t dim = 0;

  QueryBlock block() const {
    return {data.data(), static_cast<std::int64_t>(allowed.size()), dim, allowed};
  }
  const float* query(std::int64_t i) const { return data.data() + i * dim; }
};

/// Queries near keys, as attention's are, and of larger norm.
inline Queries make_queries(const Keys& keys, std::int64_t count, PositionRange allowed,
                            unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Queries queries;
  queries.dim = keys.dim;
  queries.allowed.assign(static_cast<std::size_t>(count), allowed);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto near = static_cast<std::size_t>(random() % static_cast<unsigned>(keys.count));
    for (std::int64_t j = 0; j < keys.dim; ++j) {
      const double key =
          keys.values[near * static_cast<std::size_t>(keys.dim) + static_cast<std::size_t>(j)];
      queries.data.push_back(2.0F * static_cast<float>(key) + normal(random));
    }
  }
  return queries;
}

/// What every result must satisfy, whatever the index; gives the recall.
inline double check_result(const Keys& keys, const Queries& queries, std::int64_t k,
                           const SearchResult& result) {
  std::int64_t hits = 0;
  std::int64_t wanted = 0;
  EXPECT_EQ(result.queries(), static_cast<std::int64_t>(queries.allowed.size()));
  for (std::int64_t q = 0; q < result.queries(); ++q) {
    PositionRange range = queries.allowed[static_cast<std::size_t>(q)];
    range.begin = std::clamp<std::int64_t>(range.begin, 0, keys.count);
    range.end = std::clamp<std::int64_t>(range.end, 0, keys.count);
    const std::int64_t expected = std::min(k, range.size());
    std::int64_t overflowing = 0;
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      overflowing += may_overflow(keys, queries.query(q), i) ? 1 : 0;
    }
    const auto positions = result.positions(q);
    const auto scores = result.scores(q);
    const auto found = static_cast<std::int64_t>(positions.size());
    EXPECT_EQ(positions.size(), scores.size());
    EXPECT_LE(found, expected) << "query " << q;
    EXPECT_GE(found, std::min(expected, range.size() - overflowing)) << "query " << q;
    if (expected == 0) continue;
    // Keys that overflow may rank anywhere.
    const double worst = overflowing > 0 ? -std::numeric_limits<double>::infinity()
                                         : kth_score(keys, queries.query(q), range, expected);
    std::set<std::int64_t> seen;
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const std::int64_t position = positions[i];
      EXPECT_TRUE(range.contains(position)) << position;
      EXPECT_TRUE(seen.insert(position).second) << "duplicate " << position;
      if (!range.contains(position)) continue;
      const double exact = score(keys, queries.query(q), position);
      const double rounding = score_tolerance(keys, queries.query(q), position);
      EXPECT_FALSE(std::isnan(scores[i]));
      if (!may_overflow(keys, queries.query(q), position)) {
        EXPECT_NEAR(scores[i], exact, rounding) << "query " << q << " place " << i;
      }
      if (i > 0) {
        EXPECT_TRUE(scores[i - 1] > scores[i] ||
                    (scores[i - 1] == scores[i] && positions[i - 1] < position))
            << "query " << q << " place " << i << " is out of order";
      }
      hits += exact >= worst - rounding ? 1 : 0;
    }
    wanted += overflowing > 0 ? found : expected;
  }
  return wanted == 0 ? 1.0 : static_cast<double>(hits) / static_cast<double>(wanted);
}

inline SearchResult search(const KeyIndex& index, const Queries& queries, std::int64_t k) {
  SearchResult result;
  index.search(queries.block(), k, result);
  return result;
}

}  // namespace topkv::test
