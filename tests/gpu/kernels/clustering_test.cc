// Spherical k-means on the device, step by step against float64 and as a whole beside FAISS's.
#include "gpu/build/clustering.h"

#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "gpu/device.h"
#include "index/lists/faiss_clustering.h"
#include "tests/gpu/kernels/device_array.h"
#include "tests/gpu/vectors.h"
#include "tests/support/token_stream.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

using test::Place;
using test::Vectors;
using test::vectors_about;

std::vector<double> direction(const double* x, std::int64_t dim) {
  double square = 0;
  for (std::int64_t j = 0; j < dim; ++j) square += x[j] * x[j];
  std::vector<double> of(static_cast<std::size_t>(dim), 0.0);
  for (std::int64_t j = 0; square > 0 && j < dim; ++j) of[j] = x[j] / std::sqrt(square);
  return of;
}
std::vector<double> direction(const Vectors& all, std::int64_t i) {
  const std::vector<double> x(all.at(i), all.at(i) + all.dim);
  return direction(x.data(), all.dim);
}

/// The mean of vectors' cosines with the directions of their clusters' means. Fails the test where
/// a cluster is empty.
double objective(const Vectors& all, const Clustering& found) {
  std::vector<double> sums(static_cast<std::size_t>(found.clusters * all.dim), 0.0);
  std::set<std::int32_t> some;
  for (std::int64_t i = 0; i < all.count(); ++i) {
    const std::int32_t cluster = found.cluster[static_cast<std::size_t>(i)];
    EXPECT_GE(cluster, 0);
    EXPECT_LT(cluster, found.clusters);
    some.insert(cluster);
    const std::vector<double> x = direction(all, i);
    for (std::int64_t j = 0; j < all.dim; ++j) sums[cluster * all.dim + j] += x[j];
  }
  EXPECT_EQ(std::ssize(some), found.clusters);
  double total = 0;  // of a cluster: the length of its sum
  for (std::int64_t c = 0; c < found.clusters; ++c) {
    double square = 0;
    for (std::int64_t j = 0; j < all.dim; ++j) square += std::pow(sums[c * all.dim + j], 2);
    total += std::sqrt(square);
  }
  return total / static_cast<double>(all.count());
}

Clustering cluster(const Place& place, const Vectors& all, std::int64_t clusters) {
  const auto clusterer = place.compute().clusterer(all.dim);
  EXPECT_NE(clusterer, nullptr);
  return clusterer->cluster(all.data, clusters, {});
}

std::vector<__half> halves(const std::vector<float>& values) {
  std::vector<__half> to;
  for (const float x : values) to.push_back(__float2half(x));
  return to;
}

TEST(GpuClustering, VectorsBecomeDirections) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t dim : {1, 64, 80, 96, 128, 200, 256}) {
    Vectors all = vectors_about(333, dim, 0, 1.0F, 1);
    std::fill_n(all.data.begin() + 5 * dim, dim, 0.0F);
    for (std::int64_t j = 0; j < dim; ++j) all.data[7 * dim + j] *= 1e30F;
    for (std::int64_t j = 0; j < dim; ++j) all.data[8 * dim + j] *= 1e-30F;
    const std::int64_t width = width_of(dim);
    const DeviceArray<float> from(all.data);
    const DeviceArray<__half> to(all.count() * width);
    normalise_vectors(from.data(), all.count(), dim, to.data(), nullptr);
    const std::vector<__half> got = to.read();
    for (std::int64_t i = 0; i < all.count(); ++i) {
      const std::vector<double> want = direction(all, i);
      for (std::int64_t j = 0; j < width; ++j) {
        ASSERT_NEAR(__half2float(got[i * width + j]), j < dim ? want[j] : 0.0, 0x1p-12)
            << "vector " << i << ", element " << j << " of " << dim;
      }
    }
  }
}

TEST(GpuClustering, NearestIsTheLargestProductAndTheFirstOfEqualOnes) {
  TOPKV_NEEDS_GPU();
  struct {
    std::int64_t count, clusters;
  } const cases[] = {{1, 1},   {17, 63},    {256, 64},  {257, 65},   {31, 1000},
                     {5, 257}, {1000, 130}, {3000, 32}, {4097, 777}, {64, 20000}};
  for (const std::int64_t width : {64, 128, 256}) {
    for (const auto& [count, clusters] : cases) {
      const std::vector<__half> vectors = halves(vectors_about(count, width, 0, 0.1F, 2).data);
      std::vector<__half> centroids = halves(vectors_about(clusters, width, 0, 0.1F, 3).data);
      // The second half is the first once more.
      const std::int64_t repeated = clusters / 2;
      std::copy_n(centroids.begin(), repeated * width,
                  centroids.begin() + (clusters - repeated) * width);
      std::vector<float> offsets(static_cast<std::size_t>(nearest_offsets(clusters)),
                                 -std::numeric_limits<float>::infinity());
      std::fill_n(offsets.begin(), clusters, 0.0F);
      const DeviceArray<__half> device_vectors(vectors);
      const DeviceArray<__half> device_centroids(centroids);
      const DeviceArray<float> device_offsets(offsets);
      const DeviceArray<int> nearest(count);
      find_nearest(device_vectors.data(), count, device_centroids.data(), clusters, width,
                   device_offsets.data(), nearest.data(), nullptr);
      const std::vector<int> got = nearest.read();
      for (std::int64_t i = 0; i < count; i += 1 + count / 300) {
        double best = -std::numeric_limits<double>::infinity();
        double of_got = 0;
        double size = 0;
        for (std::int64_t c = 0; c < clusters; ++c) {
          double score = 0;
          double terms = 0;
          for (std::int64_t j = 0; j < width; ++j) {
            const double term = double{__half2float(vectors[i * width + j])} *
                                double{__half2float(centroids[c * width + j])};
            score += term;
            terms += std::abs(term);
          }
          best = std::max(best, score);
          size = std::max(size, terms);
          if (c == got[i]) of_got = score;
        }
        ASSERT_GE(got[i], 0);
        ASSERT_LT(got[i], clusters - repeated) << "not the first of equal ones";
        ASSERT_GE(of_got, best - 1e-6 * size)
            << "vector " << i << " of " << count << ", " << clusters << " clusters of " << width;
      }
    }
  }
}

TEST(GpuClustering, CentroidsAreTheDirectionsOfTheirMembersMeans) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t width : {64, 128, 256}) {
    const std::int64_t count = 3001;
    const std::int64_t clusters = 70;
    Vectors all = vectors_about(count, width, 0, 1.0F, 4);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::vector<double> x = direction(all, i);
      std::copy(x.begin(), x.end(), all.data.begin() + i * width);
    }
    const std::vector<__half> vectors = halves(all.data);
    std::vector<int> nearest;
    std::mt19937 random(5);
    for (std::int64_t i = 0; i < count; ++i)  // cluster 3 has one, cluster 4 none, 5 half of all
      nearest.push_back(i == 9 ? 3 : i % 2 == 0 ? 5 : 6 + static_cast<int>(random() % 64));
    const DeviceArray<__half> device_vectors(vectors);
    const DeviceArray<int> device_nearest(nearest);
    const DeviceArray<std::int64_t> sums(
        std::vector<std::int64_t>(static_cast<std::size_t>(clusters * width), 0));
    const DeviceArray<int> sizes(std::vector<int>(static_cast<std::size_t>(clusters), 0));
    // In two pieces.
    add_to_clusters(device_vectors.data(), device_nearest.data(), 1000, width, sums.data(),
                    sizes.data(), nullptr);
    add_to_clusters(device_vectors.data() + 1000 * width, device_nearest.data() + 1000,
                    count - 1000, width, sums.data(), sizes.data(), nullptr);
    const std::vector<__half> before = halves(vectors_about(clusters, width, 0, 1.0F, 6).data);
    const DeviceArray<__half> centroids(before);
    point_centroids(sums.data(), clusters, width, centroids.data(), nullptr);
    const std::vector<__half> got = centroids.read();
    const std::vector<int> got_sizes = sizes.read();
    for (std::int64_t c = 0; c < clusters; ++c) {
      std::vector<double> sum(static_cast<std::size_t>(width), 0.0);
      int size = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        if (nearest[i] != c) continue;
        ++size;
        for (std::int64_t j = 0; j < width; ++j) sum[j] += __half2float(vectors[i * width + j]);
      }
      ASSERT_EQ(got_sizes[c], size);
      const std::vector<double> want = direction(sum.data(), width);
      for (std::int64_t j = 0; j < width; ++j) {
        const double expected = size > 0 ? want[j] : __half2float(before[c * width + j]);
        ASSERT_NEAR(__half2float(got[c * width + j]), expected, 0x1p-12) << "cluster " << c;
      }
    }
  }
}

TEST(GpuClustering, IsAsGoodAsFaissAndTheSameEachTime) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  struct {
    std::int64_t count, dim, groups, clusters;
    float spread;
  } const cases[] = {{20000, 64, 0, 1000, 1.0F},
                     {20000, 64, 300, 1000, 0.5F},
                     {12000, 80, 200, 600, 0.3F},
                     {12000, 96, 0, 600, 1.0F},
                     {15000, 128, 700, 750, 0.7F},
                     {6000, 256, 100, 300, 0.2F},
                     {6000, 256, 0, 300, 1.0F},
                     {4000, 48, 50, 200, 0.5F},
                     // All point nearly the same way.
                     {12000, 128, 1, 600, 0.05F}};
  for (const auto& [count, dim, groups, clusters, spread] : cases) {
    const Vectors all = vectors_about(count, dim, groups, spread, 7);
    const Clustering found = cluster(place, all, clusters);
    const double ours = objective(all, found);
    const double faiss = objective(all, cluster_directions(all.data, dim, clusters, {}));
    const std::string what =
        std::to_string(count) + " of " + std::to_string(dim) + " about " + std::to_string(groups);
    EXPECT_GE(found.clusters, clusters * 98 / 100) << what;
    EXPECT_GT(ours, 0.995 * faiss) << what;
    // Where cosines are all near 1, what is missing to it tells more.
    EXPECT_LT(1 - ours, 1.05 * (1 - faiss)) << what;
    RecordProperty(what, std::to_string(ours) + " for " + std::to_string(faiss));
    const Clustering again = cluster(place, all, clusters);
    EXPECT_TRUE(again.cluster == found.cluster) << what;
  }
}

TEST(GpuClustering, RepeatedVectorsLeaveFewerClusters) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const std::int64_t distinct = 40;
  const Vectors some = vectors_about(distinct, 64, 0, 1.0F, 8);
  Vectors all{64, {}};
  for (std::int64_t i = 0; i < 2000; ++i)
    all.data.insert(all.data.end(), some.at(i % distinct), some.at(i % distinct) + 64);
  for (const std::int64_t clusters : {40, 100, 2000}) {
    const Clustering found = cluster(place, all, clusters);
    EXPECT_LE(found.clusters, distinct);
    EXPECT_GE(found.clusters, distinct / 2);
    for (std::int64_t i = distinct; i < 2000; ++i)  // the same vector, the same cluster
      ASSERT_EQ(found.cluster[i], found.cluster[i % distinct]);
    objective(all, found);
  }
  // With a vector that has no direction among them, and nothing else.
  std::fill_n(all.data.begin() + 64, 64, 0.0F);
  objective(all, cluster(place, all, 100));
  std::fill(all.data.begin(), all.data.end(), 0.0F);
  EXPECT_EQ(cluster(place, all, 100).clusters, 1);
}

TEST(GpuClustering, OneClusterAndOneForEachVector) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const Vectors all = vectors_about(3000, 96, 0, 1.0F, 9);
  const Clustering one = cluster(place, all, 1);
  EXPECT_EQ(one.clusters, 1);
  EXPECT_EQ(one.cluster, std::vector<std::int32_t>(3000, 0));
  const Clustering each = cluster(place, all, 3000);
  EXPECT_EQ(each.clusters, 3000);
  const Vectors single = vectors_about(1, 96, 0, 1.0F, 10);
  EXPECT_EQ(cluster(place, single, 1).cluster, std::vector<std::int32_t>(1, 0));
}

TEST(GpuClustering, StopsAndGoesOnAndServesManyThreads) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const auto clusterer = place.compute().clusterer(64);
  const Vectors all = vectors_about(30000, 64, 100, 0.5F, 11);
  std::stop_source source;
  source.request_stop();
  EXPECT_THROW(clusterer->cluster(all.data, 1500, source.get_token()), Stopped);
  const Clustering want = clusterer->cluster(all.data, 1500, {});
  const Vectors few = vectors_about(500, 64, 10, 0.5F, 12);
  const Clustering want_few = clusterer->cluster(few.data, 20, {});
  std::vector<Clustering> found(6);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back([&, i] {
      found[i] = i % 2 == 0 ? clusterer->cluster(all.data, 1500, {})
                            : clusterer->cluster(few.data, 20, {});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(found[i].cluster == (i % 2 == 0 ? want : want_few).cluster);
}

}  // namespace
}  // namespace topkv::gpu
