#include "index/lists/clustering.h"

namespace topkv {

Clustering without_empty(std::span<const std::int32_t> cluster, std::int64_t clusters) {
  Clustering found;
  found.cluster.reserve(cluster.size());
  std::vector<std::int32_t> number(static_cast<std::size_t>(clusters), -1);
  for (const std::int32_t of : cluster) {
    std::int32_t& mine = number[static_cast<std::size_t>(of)];
    if (mine < 0) mine = static_cast<std::int32_t>(found.clusters++);
    found.cluster.push_back(mine);
  }
  return found;
}

}  // namespace topkv
