// k-means by FAISS.
#pragma once

#include <cstdint>
#include <stop_token>
#include <vector>

namespace topkv {

/// Spherical k-means of vectors [count, dim] of length 1 (or 0): which of so many centroids each is
/// nearest to, from 0; some centroids may be nobody's. On the calling thread. Throws what FAISS
/// does, soon when a stop is requested.
std::vector<std::int64_t> cluster_directions(const std::vector<float>& vectors, std::int64_t count,
                                             std::int64_t dim, std::int64_t centroids,
                                             const std::stop_token& stop);

}  // namespace topkv
