#include "index/faiss_clustering.h"

#include <faiss/Clustering.h>
#include <faiss/IndexFlat.h>

#include <algorithm>
#include <limits>

#include "index/faiss_interrupt.h"
#include "src/core/threads.h"

namespace topkv {
namespace {

constexpr int rounds = 10;

}  // namespace

std::vector<std::int64_t> cluster_directions(const std::vector<float>& vectors, std::int64_t count,
                                             std::int64_t dim, std::int64_t centroids,
                                             const std::stop_token& stop) {
  const OneOpenmpThread one;  // heads are clustered beside each other
  const OneBlasThread one_blas_thread;
  const FaissInterrupt interrupt(stop);
  faiss::ClusteringParameters parameters;
  parameters.niter = rounds;
  parameters.spherical = true;
  parameters.min_points_per_centroid = 1;  // no warning: it is what was asked for
  parameters.max_points_per_centroid =
      std::numeric_limits<int>::max() / static_cast<int>(centroids);
  faiss::IndexFlatIP index(dim);
  faiss::Clustering clustering(static_cast<int>(dim), static_cast<int>(centroids), parameters);
  clustering.train(count, vectors.data(), index);
  std::vector<float> scores(static_cast<std::size_t>(count));
  std::vector<std::int64_t> nearest(static_cast<std::size_t>(count));
  index.search(count, vectors.data(), 1, scores.data(), nearest.data());
  // It gives -1 where no score is a number.
  for (std::int64_t& centroid : nearest) centroid = std::max<std::int64_t>(centroid, 0);
  return nearest;
}

}  // namespace topkv
