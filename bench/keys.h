// Keys and queries for benchmarks, shaped like those of attention heads, and reproducible.
//
// Keys: a mixture of 256 Gaussian clusters (spread 0.7 of the distance scale between centres),
// norms varied by a factor of 3, one key in 1000 a heavy hitter of 3 times the norm.
// Queries: twice a random key plus unit noise.
// Keys lie one after another in bf16, as the store lays them out.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "src/core/math/convert.h"
#include "src/core/memory/memory.h"
#include "topkv/view.h"

namespace bench {

struct Data {
  topkv::Region rows;          // of keys, on huge pages, as the store's are
  std::vector<float> queries;  // [query_count, dim]
  std::int64_t count = 0;
  std::int64_t dim = 0;

  topkv::KeyView keys() const { return keys(0, count); }
  /// `size` keys from the first-th on.
  topkv::KeyView keys(std::int64_t first, std::int64_t size) const {
    return {rows.data() + first * 2 * dim, topkv::DType::bf16, size, dim, 2 * dim};
  }
};

inline Data make_data(std::int64_t count, std::int64_t dim, std::int64_t query_count) {
  constexpr std::uint32_t clusters = 256;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> size(0.5F, 1.5F);
  Data data{topkv::Region(count * dim * 2),
            std::vector<float>(static_cast<std::size_t>(query_count * dim)), count, dim};
  std::vector<float> centres(static_cast<std::size_t>(clusters * dim));
  for (float& x : centres) x = normal(random);
  std::vector<float> key(static_cast<std::size_t>(dim));
  for (std::int64_t i = 0; i < count; ++i) {
    const float* centre = centres.data() + random() % clusters * dim;
    const float norm = size(random) * (random() % 1000 == 0 ? 3.0F : 1.0F);
    for (std::int64_t j = 0; j < dim; ++j) {
      key[static_cast<std::size_t>(j)] = norm * (centre[j] + 0.7F * normal(random));
    }
    topkv::from_float(key.data(), dim, topkv::DType::bf16, data.rows.data() + i * 2 * dim);
  }
  for (std::int64_t q = 0; q < query_count; ++q) {
    const auto near = static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(count));
    topkv::to_float(data.keys().key(near), topkv::DType::bf16, dim, key.data());
    for (std::int64_t j = 0; j < dim; ++j) {
      data.queries[static_cast<std::size_t>(q * dim + j)] =
          2.0F * key[static_cast<std::size_t>(j)] + normal(random);
    }
  }
  return data;
}

}  // namespace bench
