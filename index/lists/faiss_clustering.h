// k-means by FAISS.
#pragma once

#include <cstdint>
#include <stop_token>
#include <vector>

#include "index/lists/clustering.h"

namespace topkv {

/// Makes a vector [dim] one of length 1, unless that is 0.
void normalise(float* x, std::int64_t dim);

/// Spherical k-means of vectors [count, dim], by their directions, into so many clusters, from 1 to
/// count; fewer where vectors repeat. On the calling thread. Throws what FAISS does, soon when a
/// stop is requested.
Clustering cluster_directions(std::vector<float> vectors, std::int64_t dim, std::int64_t clusters,
                              const std::stop_token& stop);

}  // namespace topkv
