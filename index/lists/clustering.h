// Clusters of vectors, and who finds them elsewhere than on the host's threads.
#pragma once

#include <cstdint>
#include <span>
#include <stop_token>
#include <vector>

namespace topkv {

struct Clustering {
  std::vector<std::int32_t> cluster;  ///< per vector
  std::int64_t clusters = 0;          ///< none of them is empty
};

/// Of so many clusters those that have vectors, numbered in the order of these. cluster: per
/// vector.
Clustering without_empty(std::span<const std::int32_t> cluster, std::int64_t clusters);

/// Safe from many threads, of which those wait that it does not serve.
class Clusterer {
 public:
  virtual ~Clusterer() = default;

  /// Spherical k-means of vectors [count, dim], as cluster_directions (faiss_clustering.h): as near
  /// to their centroids on average, but not the same clusters. Takes the device's lock for pieces
  /// of some milliseconds; the caller does not hold it. Ends within about a second with Stopped
  /// when that is requested. Throws OutOfMemory, before it has begun, where there is no
  /// room for so many. REQUIRES: finite numbers, 1 <= clusters <= count.
  virtual Clustering cluster(std::span<const float> vectors, std::int64_t clusters,
                             const std::stop_token& stop) = 0;
};

}  // namespace topkv
