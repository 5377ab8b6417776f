#include "index/lists/faiss_clustering.h"

#include <faiss/Clustering.h>
#include <faiss/IndexFlat.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "index/graphs/faiss_interrupt.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

constexpr int rounds = 10;

}  // namespace

void normalise(float* x, std::int64_t dim) {
  double square = 0;
  for (std::int64_t i = 0; i < dim; ++i) square += static_cast<double>(x[i]) * x[i];
  if (square == 0) return;
  const double factor = 1 / std::sqrt(square);
  for (std::int64_t i = 0; i < dim; ++i) x[i] = static_cast<float>(x[i] * factor);
}

Clustering cluster_directions(std::vector<float> vectors, std::int64_t dim, std::int64_t clusters,
                              const std::stop_token& stop) {
  const OneOpenmpThread one;  // heads are clustered beside each other
  const OneBlasThread one_blas_thread;
  const FaissInterrupt interrupt(stop);
  const std::int64_t count = std::ssize(vectors) / dim;
  for (std::int64_t i = 0; i < count; ++i)
    normalise(&vectors[static_cast<std::size_t>(i * dim)], dim);
  faiss::ClusteringParameters parameters;
  parameters.niter = rounds;
  parameters.spherical = true;
  parameters.min_points_per_centroid = 1;  // no warning: it is what was asked for
  parameters.max_points_per_centroid = std::numeric_limits<int>::max() / static_cast<int>(clusters);
  faiss::IndexFlatIP index(dim);
  faiss::Clustering clustering(static_cast<int>(dim), static_cast<int>(clusters), parameters);
  clustering.train(count, vectors.data(), index);
  std::vector<float> scores(static_cast<std::size_t>(count));
  std::vector<std::int64_t> nearest(static_cast<std::size_t>(count));
  index.search(count, vectors.data(), 1, scores.data(), nearest.data());
  // FAISS leaves clusters empty where vectors repeat; -1 is where no score is a number.
  std::vector<std::int32_t> cluster;
  for (const std::int64_t centroid : nearest)
    cluster.push_back(static_cast<std::int32_t>(std::max<std::int64_t>(centroid, 0)));
  return without_empty(cluster, clusters);
}

}  // namespace topkv
