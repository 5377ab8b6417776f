// Clusters of keys, and who finds them for an index.
#include "index/lists/clustering.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <stop_token>
#include <vector>

#include "index/common/index_factory.h"
#include "index/methods/cluster_index.h"
#include "index/methods/squeezed_index.h"
#include "tests/support/reference.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t clustered_count = 1000;
constexpr std::int64_t clustered_dim = 32;

const std::vector<float>& data() {
  static const std::vector<float> all =
      reference::random_floats(clustered_count * clustered_dim, 1);
  return all;
}
KeyView keys() {
  return {reinterpret_cast<const std::byte*>(data().data()), DType::f32, clustered_count,
          clustered_dim, 4 * clustered_dim};
}

/// Vectors in the order in which they come, the same number to each cluster; or fails.
class InOrder final : public Clusterer {
 public:
  Clustering cluster(std::span<const float> vectors, std::int64_t clusters,
                     const std::stop_token& stop) override {
    if (full) throw OutOfMemory("a test", 2, 1, "none");
    if (stop.stop_requested()) throw Stopped("a test");
    const std::int64_t all = std::ssize(vectors) / clustered_dim;
    asked.push_back(all);
    Clustering found{{}, clusters};
    for (std::int64_t i = 0; i < all; ++i)
      found.cluster.push_back(static_cast<std::int32_t>(i * clusters / all));
    return found;
  }

  bool full = false;
  std::vector<std::int64_t> asked;  // how many vectors
};

std::vector<std::int32_t> grouping(const ClusterIndex& index) {
  const Grouping of = index.grouping();
  return {of.group, of.group + index.size()};
}

TEST(Clustering, NumbersClustersThatHaveVectors) {
  const std::vector<std::int32_t> cluster = {5, 2, 5, 0, 2};
  const Clustering found = without_empty(cluster, 7);
  EXPECT_EQ(found.cluster, (std::vector<std::int32_t>{0, 1, 0, 2, 1}));
  EXPECT_EQ(found.clusters, 3);
  EXPECT_EQ(without_empty({}, 7).clusters, 0);
}

TEST(Clustering, AnIndexHasAllItsLevelsClustered) {
  InOrder clusterer;
  const Accelerator accelerator{nullptr, &clusterer};
  const IndexSpec spec("squeezed:c=10,coarse=2");
  ASSERT_TRUE(spec.factory().traits().has_clusters);
  const auto index = spec.factory().make();
  spec.factory().build(*index, keys(), accelerator, {});
  EXPECT_EQ(clusterer.asked, (std::vector<std::int64_t>{clustered_count, 100}));
  const auto& squeezed = dynamic_cast<const SqueezedIndex&>(*index);
  for (std::int64_t i = 0; i < clustered_count; ++i)
    ASSERT_EQ(squeezed.grouping().group[i], static_cast<std::int32_t>(i / 10));
  for (std::int64_t c = 0; c < 100; ++c) ASSERT_EQ(squeezed.coarse_of(c), c / 5);

  clusterer.asked.clear();
  const IndexSpec segments("retroinfer:size=10,segment=400");
  const auto other = segments.factory().make();
  segments.factory().build(*other, keys(), accelerator, {});
  EXPECT_EQ(clusterer.asked, (std::vector<std::int64_t>{400, 400, 200}));
  EXPECT_EQ(other->inserted(), clustered_count);
}

TEST(Clustering, TheHostsThreadsDoItWhereThereIsNoRoom) {
  InOrder clusterer;
  clusterer.full = true;
  ClusterIndex with({.text = "a test"});
  ClusterIndex without({.text = "a test"});
  with.build_with(&clusterer, keys(), {});
  without.build_with(nullptr, keys(), {});
  EXPECT_TRUE(clusterer.asked.empty());
  EXPECT_EQ(grouping(with), grouping(without));
}

TEST(Clustering, StopsWithWhatWasInserted) {
  InOrder clusterer;
  ClusterIndex index({.text = "a test"});
  std::stop_source source;
  source.request_stop();
  EXPECT_THROW(index.build_with(&clusterer, keys(), source.get_token()), Stopped);
  EXPECT_EQ(index.inserted(), 0);
}

}  // namespace
}  // namespace topkv
