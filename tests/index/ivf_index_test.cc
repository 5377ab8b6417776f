// Lists of near keys: that they hold every key, what a group of heads finds in them, and how few
// keys that takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "index/lists/clustered_keys.h"
#include "tests/support/key_cases.h"
#include "topkv/error.h"
#include "topkv/key_index.h"

namespace topkv {
namespace {

using test::clustered;
using test::everything;
using test::Keys;
using test::make_keys;

double squared_distance(const Keys& keys, std::int64_t key, const float* centroid) {
  double sum = 0;
  for (std::int64_t j = 0; j < keys.dim; ++j) {
    const double x = keys.values[static_cast<std::size_t>(key * keys.dim + j)] - centroid[j];
    sum += x * x;
  }
  return sum;
}

/// Every key below `count` is in one list, and as far from its centroid as its residual tells.
void expect_all_held(const ClusteredKeys& lists, const Keys& keys, std::int64_t count,
                     const std::vector<float>& residuals) {
  std::vector<std::int64_t> held;
  const KeyView centroids = lists.centroids();
  for (std::int64_t list = 0; list < lists.count(); ++list) {
    EXPECT_TRUE(std::ranges::is_sorted(lists.of(list)));
    for (const std::int64_t key : lists.of(list)) {
      held.push_back(key);
      const std::int64_t judged = key - (count - std::ssize(residuals));
      if (judged < 0) continue;
      const auto* centroid = reinterpret_cast<const float*>(centroids.key(list));
      // Squares of some 64 are subtracted, each with a rounding error of dim * 2^-24.
      EXPECT_NEAR(residuals[static_cast<std::size_t>(judged)],
                  squared_distance(keys, key, centroid), 4e-3);
    }
  }
  std::ranges::sort(held);
  ASSERT_EQ(std::ssize(held), count);
  for (std::int64_t i = 0; i < count; ++i) EXPECT_EQ(held[static_cast<std::size_t>(i)], i);
}

/// Sums what lists tell of their progress.
struct BuildProgress {
  std::atomic<std::int64_t> keys = 0;
  std::function<void(std::int64_t)> done = [this](std::int64_t count) { keys += count; };
};

TEST(ClusteredKeys, HoldEveryKeyOnceWhenLearnedAndWhenAdded) {
  const Keys keys = make_keys(clustered(5000, 64, 1), 64, DType::bf16);
  ClusteredKeys lists;
  std::vector<float> residuals;
  BuildProgress progress;
  lists.learn(
      keys.view(0, 4000), 32, residuals, [] {}, progress.done);
  EXPECT_EQ(progress.keys, 4000);
  EXPECT_NEAR(static_cast<double>(lists.count()), 4000.0 / 32, 25);
  ASSERT_EQ(residuals.size(), 4000U);
  expect_all_held(lists, keys, 4000, residuals);
  lists.add(
      keys.view(), 4000, residuals, [] {}, progress.done);
  EXPECT_EQ(progress.keys, 5000);
  ASSERT_EQ(residuals.size(), 1000U);
  expect_all_held(lists, keys, 5000, residuals);
}

TEST(ClusteredKeys, OfKeysThatAreAllTheSameHoldThem) {
  const Keys keys = make_keys(std::vector<float>(300 * 8, 1.5F), 8, DType::bf16);
  ClusteredKeys lists;
  std::vector<float> residuals;
  BuildProgress progress;
  lists.learn(
      keys.view(0, 200), 4, residuals, [] {}, progress.done);
  expect_all_held(lists, keys, 200, residuals);
  lists.add(
      keys.view(), 200, residuals, [] {}, progress.done);
  expect_all_held(lists, keys, 300, residuals);
}

TEST(ClusteredKeys, WhereMostKeysAreAlikeTheWorkIsCut) {
  std::vector<float> values = clustered(60000, 8, 9);
  std::fill(values.begin() + 10000 * 8, values.begin() + 55000 * 8, 0.25F);
  const Keys keys = make_keys(values, 8, DType::bf16);
  ClusteredKeys lists;
  std::vector<float> residuals;
  BuildProgress progress;
  std::atomic<std::int64_t> checks = 0;
  lists.learn(
      keys.view(), 4, residuals, [&] { ++checks; }, progress.done);
  expect_all_held(lists, keys, 60000, residuals);
  // In one part the 45,000 would be compared with 11,250 lists four times: 480 checks for them
  // alone.
  EXPECT_LT(checks, 400);
  EXPECT_GT(checks, 100);
}

std::unique_ptr<KeyIndex> built(const char* spec, const Keys& keys) {
  auto index = make_index(spec);
  index->add(keys.view());
  index->build();
  return index;
}

TEST(IvfIndex, AGroupFindsNoLessThanItsHeadsDoAlone) {
  const Keys keys = make_keys(clustered(40000, 64, 3), 64, DType::bf16);
  const auto index = built("ivf", keys);
  const test::Queries queries = test::make_queries(keys, 24, {100, 39000}, 4);
  const double alone = check_result(keys, queries, 16, search(*index, queries, 16));
  QueryBlock block = queries.block();
  block.group = 3;
  SearchResult together;
  index->search(block, 16, together);
  EXPECT_GE(check_result(keys, queries, 16, together), alone);
  EXPECT_GE(alone, 0.9);
}

TEST(IvfIndex, HoldsFarLessThanItsKeys) {
  const Keys keys = make_keys(clustered(20000, 64, 5), 64, DType::bf16);
  const auto index = built("ivf", keys);
  EXPECT_LT(index->memory(), 20000 * 64 * 2 / 4);
}

TEST(IndicesThatChooseForGroups, RefuseQueriesThatAreNotWholeGroups) {
  const Keys keys = make_keys(clustered(500, 32, 7), 32, DType::bf16);
  for (const char* spec : {"ivf", "hnsw", "faiss:IVF"}) {
    const auto index = built(spec, keys);
    test::Queries queries = test::make_queries(keys, 4, everything, 8);
    QueryBlock block = queries.block();
    SearchResult result;
    block.group = 3;
    EXPECT_THROW(index->search(block, 4, result), InvalidArgument) << spec;
    block.group = 2;
    EXPECT_NO_THROW(index->search(block, 4, result)) << spec;
    queries.allowed[3] = {0, 400};
    block.allowed = queries.allowed;
    EXPECT_THROW(index->search(block, 4, result), InvalidArgument) << spec;
  }
}

}  // namespace
}  // namespace topkv
