// Graphs of hnsw as bytes of a file: the mean that was taken off their keys goes with them.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/index/index_bytes.h"
#include "tests/support/key_cases.h"

namespace topkv {
namespace {

constexpr std::int64_t hnsw_dim = 32;
constexpr std::int64_t all = 3000;
constexpr std::int64_t half = all / 2;
const char* const spec_text = "hnsw:M=8,efc=60";

/// Clustered keys with a mean of eight times their spread.
const test::Keys& keys_with_a_mean() {
  static const test::Keys keys = [] {
    std::vector<float> values = test::clustered(all, hnsw_dim, 3);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += i % 3 == 0 ? 8.0F : -8.0F;
    for (std::size_t i = 0; i < values.size(); i += hnsw_dim) values[i] += 20.0F;
    return test::make_keys(values, hnsw_dim, DType::f32);
  }();
  return keys;
}

double recall(const KeyIndex& index) {
  const test::Keys& keys = keys_with_a_mean();
  const test::Queries queries = test::make_queries(keys, 24, {0, index.size()}, 5);
  return test::check_result(keys, queries, 20, test::search(index, queries, 20));
}

std::unique_ptr<HeadIndex> graph_of_half(const IndexSpec& spec) {
  auto index = spec.factory().make();
  index->add(keys_with_a_mean().view(0, half));
  index->build();
  return index;
}

TEST(HnswFile, KeepsTheMeanForKeysThatComeLater) {
  const IndexSpec spec(spec_text);
  const auto index = graph_of_half(spec);
  const KeyView keys = keys_with_a_mean().view(0, half);
  const std::string bytes = test::written(*index, keys);
  const auto again = test::read(spec, keys, bytes);
  EXPECT_TRUE(test::written(*again, keys) == bytes);
  EXPECT_EQ(recall(*again), recall(*index));
  again->add(keys_with_a_mean().view(half, all));
  index->add(keys_with_a_mean().view(half, all));
  EXPECT_GT(recall(*index), 0.97);
  EXPECT_GT(recall(*again), 0.97);
}

// Version 0.1.0 took no mean off the keys.
TEST(HnswFile, OfAnEarlierVersionWhichHasNoMeanFindsAndGrows) {
  const IndexSpec spec(spec_text);
  const auto index = graph_of_half(spec);
  const KeyView keys = keys_with_a_mean().view(0, half);
  const std::size_t of_mean = sizeof(float) + sizeof(std::int64_t) + hnsw_dim * sizeof(float);
  const std::string earlier = test::written(*index, keys).substr(of_mean);
  const auto read = test::read(spec, keys, earlier);
  EXPECT_EQ(recall(*read), recall(*index));
  read->add(keys_with_a_mean().view(half, all));
  EXPECT_EQ(read->size(), all);
  EXPECT_GT(recall(*read), 0.6);
  const KeyView grown = keys_with_a_mean().view(0, all);
  EXPECT_EQ(recall(*test::read(spec, grown, test::written(*read, grown))), recall(*read));
}

}  // namespace
}  // namespace topkv
