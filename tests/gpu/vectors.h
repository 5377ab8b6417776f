// Vectors to cluster.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace test {

struct Vectors {
  std::int64_t dim = 0;
  std::vector<float> data;  // [count, dim]

  std::int64_t count() const { return std::ssize(data) / dim; }
  const float* at(std::int64_t i) const { return data.data() + i * dim; }
};

/// About `groups` directions, each vector as far from its own as `spread` says; 0 groups: from
/// none.
inline Vectors vectors_about(std::int64_t count, std::int64_t dim, std::int64_t groups,
                             float spread, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> centres(static_cast<std::size_t>(groups * dim));
  for (float& x : centres) x = normal(random);
  Vectors all{dim, {}};
  for (std::int64_t i = 0; i < count; ++i) {
    const float size = std::exp(normal(random));
    const std::int64_t group = groups > 0 ? static_cast<std::int64_t>(random() % groups) : 0;
    for (std::int64_t j = 0; j < dim; ++j) {
      const float centre = groups > 0 ? centres[static_cast<std::size_t>(group * dim + j)] : 0.0F;
      all.data.push_back(size * (centre + spread * normal(random)));
    }
  }
  return all;
}

}  // namespace test
