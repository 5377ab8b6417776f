// Keys unlike all others, in a text that repeats itself: whatever the index, searches find them.
#include "index/common/rare_keys.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/key_cases.h"
#include "topkv/key_index.h"

namespace topkv {
namespace {

using test::everything;
using test::Keys;
using test::make_keys;

using Positions = std::vector<std::int64_t>;

Positions held(const RareKeys& rare, PositionRange range = everything) {
  const auto positions = rare.positions(range);
  return {positions.begin(), positions.end()};
}

TEST(RareKeys, AreThoseOfTheLargestResiduals) {
  RareKeys rare(4);
  rare.learn(std::vector<float>{1, 9, 2, 3, 8, 1, 2, 3, 0});
  EXPECT_EQ(held(rare), (Positions{1, 4}));
  EXPECT_EQ(held(rare, {2, 5}), (Positions{4}));
  rare.add(9, std::vector<float>{3, 4, 2, 10});
  EXPECT_EQ(held(rare), (Positions{1, 4, 10, 12})) << "above 3, the largest that was not taken";
  rare.learn(std::vector<float>{5, 6, 7, 8});
  EXPECT_EQ(held(rare), (Positions{3}));
  rare.clear();
  EXPECT_EQ(held(rare), Positions{});
}

TEST(RareKeys, WhereAllAreAlikeNoneIsRare) {
  RareKeys rare(2);
  rare.learn(std::vector<float>(100, 1.5F));
  EXPECT_EQ(held(rare), Positions{});
}

/// Some tokens of a few sentences, over and over, each time a little different; in between, keys of
/// other directions.
struct Repeated {
  static constexpr std::int64_t dim = 64;
  static constexpr std::int64_t count = 12000;
  static constexpr std::int64_t tokens = 60;
  Keys keys;
  Positions rare;

  Repeated() {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> sentences(static_cast<std::size_t>(tokens * dim));
    for (float& x : sentences) x = normal(random);
    std::vector<float> values;
    for (std::int64_t i = 0; i < count; ++i) {
      const bool is_rare = i % 1700 == 900;
      if (is_rare) rare.push_back(i);
      for (std::int64_t j = 0; j < dim; ++j) {
        const float common = sentences[static_cast<std::size_t>(i % tokens * dim + j)];
        values.push_back(is_rare ? 0.8F * normal(random) : common + 0.05F * normal(random));
      }
    }
    keys = make_keys(values, dim, DType::bf16);
  }
};

class RareKeysOf : public testing::TestWithParam<std::string> {
 protected:
  static const Repeated& text() {
    static const Repeated repeated;
    return repeated;
  }
  /// Asks for each rare key with itself.
  static void expect_found(const KeyIndex& index) {
    const Keys& keys = text().keys;
    std::int64_t found = 0;
    for (const std::int64_t r : text().rare) {
      std::vector<float> query(Repeated::dim);
      for (std::size_t j = 0; j < query.size(); ++j)
        query[j] = static_cast<float>(keys.values[static_cast<std::size_t>(r) * query.size() + j]);
      const PositionRange allowed = everything;
      SearchResult result;
      index.search({query.data(), 1, Repeated::dim, {&allowed, 1}}, 32, result);
      found += result.positions(0).front() == r ? 1 : 0;
    }
    EXPECT_EQ(found, std::ssize(text().rare));
  }
};

TEST_P(RareKeysOf, AnIndexAreFound) {
  const auto index = make_index(GetParam());
  index->add(text().keys.view());
  index->build();
  expect_found(*index);
}

TEST_P(RareKeysOf, AnIndexThatGrewAreFound) {
  const auto index = make_index(GetParam());
  index->add(text().keys.view(0, 2000));
  index->build();
  for (std::int64_t at = 2000; at < Repeated::count; at += 5000)
    index->add(text().keys.view(at, at + 5000));
  expect_found(*index);
}

INSTANTIATE_TEST_SUITE_P(Specs, RareKeysOf,
                         testing::Values("hnsw", "ivf", "faiss:HNSW32", "faiss:IVF,SQ8",
                                         "faiss:IVF,PQ16x4", "codes"));

}  // namespace
}  // namespace topkv
