// Indices whose keys a device clusters, beside those of the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "index/methods/squeezed_index.h"
#include "tests/gpu/vectors.h"
#include "tests/support/token_stream.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::Place;
using test::Vectors;
using test::vectors_about;

TEST(GpuClusteredIndex, IsTheHostsForLongVectorsAndWhereThereIsNoRoom) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  EXPECT_EQ(place.compute().clusterer(257), nullptr);
  const Vectors all = vectors_about(3000, 64, 10, 0.5F, 13);
  const KeyView keys{reinterpret_cast<const std::byte*>(all.data.data()), DType::f32, all.count(),
                     64, 256};
  const auto clusterer = place.compute().clusterer(64);
  {
    const DeviceMemory memory = place.compute().memory();
    const Buffer rest =
        place.compute().allocate(memory.ceiling - memory.used - (4 << 20), "a test");
    EXPECT_THROW(clusterer->cluster(all.data, 150, {}), OutOfMemory);
    // Of an index the host's threads cluster the keys.
    ClusterIndex alone({.text = "a test"});
    ClusterIndex with({.text = "a test"});
    alone.build_with(nullptr, keys, {});
    with.build_with(clusterer.get(), keys, {});
    const Grouping a = alone.grouping();
    const Grouping b = with.grouping();
    ASSERT_EQ(a.groups, b.groups);
    EXPECT_TRUE(std::equal(a.group, a.group + keys.count, b.group));
  }
  EXPECT_EQ(clusterer->cluster(all.data, 150, {}).clusters, 150);
}

/// Of the softmax of some queries, what the rows that the index finds have.
double mass_found(const KeyIndex& index, const Vectors& keys, std::int64_t k) {
  constexpr std::int64_t queries = 256;
  const double scale = 1 / std::sqrt(static_cast<double>(keys.dim));
  std::mt19937 random(15);
  std::normal_distribution<float> normal;
  double mass = 0;
  for (std::int64_t q = 0; q < queries; ++q) {
    // Towards one of the keys.
    const float* key = keys.at(static_cast<std::int64_t>(random()) % keys.count());
    std::vector<float> query;
    for (std::int64_t j = 0; j < keys.dim; ++j) query.push_back(2 * key[j] + normal(random));
    const PositionRange all{0, keys.count()};
    QueryBlock block;
    block.data = query.data();
    block.count = 1;
    block.dim = keys.dim;
    block.allowed = {&all, 1};
    SearchResult result;
    index.search(block, k, result);
    std::vector<double> weights;
    for (std::int64_t row = 0; row < keys.count(); ++row) {
      double score = 0;
      for (std::int64_t j = 0; j < keys.dim; ++j) score += double{query[j]} * keys.at(row)[j];
      weights.push_back(scale * score);
    }
    const double most = *std::max_element(weights.begin(), weights.end());
    for (double& weight : weights) weight = std::exp(weight - most);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (const std::int64_t row : result.positions(0)) mass += weights[row] / sum / queries;
  }
  return mass;
}

TEST(GpuClusteredIndex, FindsAsMuchAsTheHosts) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const AttentionShape shape{.layers = 1, .q_heads = 2, .kv_heads = 2, .head_dim = 64};
  const std::int64_t tokens = 6000;
  Vectors heads[2];
  std::vector<float> keys;
  for (unsigned head = 0; head < 2; ++head) {
    heads[head] = vectors_about(tokens, 64, 150, 0.5F, 20 + head);
    for (float& x : heads[head].data) x = reference::as_bf16(x);
  }
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (const Vectors& of : heads) keys.insert(keys.end(), of.at(t), of.at(t) + 64);
  }
  ContextBuilder builder(shape, {.capacity = tokens}, place.device());
  const TensorView view = TensorView::tokens_first(keys.data(), DType::f32, tokens, 2, 64);
  builder.append(0, view, view);
  const auto plain = builder.freeze();
  for (const char* spec : {"squeezed", "retroinfer:segment=2048"}) {
    std::int64_t reported = 0;
    const auto host = plain->with_index(spec);
    const auto device = plain->with_index(
        spec, [&](const Progress& progress) { reported = progress.done; }, place.device());
    EXPECT_EQ(reported, 2 * tokens);
    double of_host = 0;
    double of_device = 0;
    for (std::int64_t head = 0; head < 2; ++head) {
      const auto& a = dynamic_cast<const ClusterIndex&>(host->index(spec, 0, head));
      const auto& b = dynamic_cast<const ClusterIndex&>(device->index(spec, 0, head));
      of_host += mass_found(a, heads[head], 400) / 2;
      of_device += mass_found(b, heads[head], 400) / 2;
      EXPECT_NEAR(b.grouping().groups, a.grouping().groups, tokens / 400) << spec;
      // They are others: the device has made them.
      EXPECT_FALSE(std::equal(b.grouping().group, b.grouping().group + tokens, a.grouping().group));
    }
    // Where clusters begin is chance: of other keys of this kind 0.92 to 0.99 are found.
    EXPECT_GT(of_host, 0.9) << spec;
    EXPECT_NEAR(of_device, of_host, 0.05) << spec;
  }
  // Coarse clusters are the device's as well.
  const auto clusterer = place.compute().clusterer(64);
  SqueezedIndex index({.fine = 5, .coarse = 1});
  index.build_with(
      clusterer.get(),
      {reinterpret_cast<const std::byte*>(heads[0].data.data()), DType::f32, tokens, 64, 256}, {});
  std::set<std::int64_t> coarse;
  for (std::int64_t c = 0; c < index.grouping().groups; ++c) coarse.insert(index.coarse_of(c));
  EXPECT_NEAR(static_cast<double>(std::ssize(coarse)), tokens / 100.0, 3);
}

}  // namespace
}  // namespace topkv
