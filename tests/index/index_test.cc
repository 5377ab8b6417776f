// One suite over all index specs, against a float64 brute force that shares no code with them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/key_cases.h"
#include "topkv/error.h"
#include "topkv/key_index.h"

namespace topkv {
namespace {

using test::check_result;
using test::clustered;
using test::everything;
using test::Keys;
using test::make_keys;
using test::make_queries;
using test::Queries;
using test::search;

struct Case {
  std::string spec;
  double recall;  // at k = 32 of 6000 clustered keys, at least
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.spec; }

class EveryIndex : public testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<KeyIndex> built(const KeyView& keys) const {
    auto index = make_index(GetParam().spec);
    index->add(keys);
    index->build();
    return index;
  }
};

TEST_P(EveryIndex, FindsTheLargestInnerProducts) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const Keys keys = make_keys(clustered(6000, 64, 1), 64, dtype);
    const auto index = built(keys.view());
    EXPECT_EQ(index->size(), 6000);
    const Queries queries = make_queries(keys, 24, everything, 2);
    const double recall = check_result(keys, queries, 32, search(*index, queries, 32));
    RecordProperty("recall_" + std::string(name_of(dtype)), std::to_string(recall));
    EXPECT_GE(recall, GetParam().recall) << name_of(dtype);
  }
}

// As keys after RoPE have one: it changes no ranking, so it may cost no recall.
TEST_P(EveryIndex, AStrongCommonMeanOfTheKeysCostsNoRecall) {
  const std::vector<float> source = clustered(6000, 64, 21);
  std::mt19937 random(23);
  std::normal_distribution<float> normal(0.0F, 8.0F);  // some eight times the spread
  std::vector<float> mean(64);
  for (float& x : mean) x = normal(random);
  std::vector<float> moved = source;
  for (std::size_t i = 0; i < moved.size(); ++i) moved[i] += mean[i % 64];
  const Keys keys = make_keys(source, 64, DType::f32);
  const Keys moved_keys = make_keys(moved, 64, DType::f32);
  const auto index = built(keys.view());
  const auto of_moved = built(moved_keys.view());
  const Queries near = make_queries(keys, 24, everything, 22);
  for (const float along : {0.0F, 1.0F, -1.0F}) {  // queries across the mean, with it, against it
    Queries queries = near;
    for (std::size_t i = 0; i < queries.data.size(); ++i) queries.data[i] += along * mean[i % 64];
    const double recall = check_result(keys, queries, 32, search(*index, queries, 32));
    const double with = check_result(moved_keys, queries, 32, search(*of_moved, queries, 32));
    EXPECT_GE(with, recall - 0.08) << "without a mean " << recall << ", along " << along;
  }
}

TEST_P(EveryIndex, AllowedRangesAreHonoured) {
  const Keys keys = make_keys(clustered(6000, 64, 3), 64, DType::bf16);
  const auto index = built(keys.view());
  Queries queries = make_queries(keys, 10, everything, 4);
  queries.allowed = {{0, 0},       {100, 90}, {5, 6},    {17, 40},     {5990, 6000},
                     {5990, 9000}, {-5, 3},   {4, 5000}, {3000, 6000}, {7000, 8000}};
  const SearchResult result = search(*index, queries, 32);
  EXPECT_GE(check_result(keys, queries, 32, result), GetParam().recall);
  EXPECT_EQ(result.positions(0).size(), 0U);
  EXPECT_EQ(result.positions(1).size(), 0U);
  EXPECT_EQ(result.positions(9).size(), 0U);
}

TEST_P(EveryIndex, KeysThatEverybodyLikesButNobodyMayFindDoNotCrowdOutOthers) {
  std::vector<float> source = clustered(3000, 64, 5);
  Keys keys = make_keys(source, 64, DType::bf16);
  Queries queries = make_queries(keys, 8, {200, 3000}, 6);
  for (std::int64_t i = 0; i < 200; ++i) {  // sinks: multiples of the queries
    const float* query = queries.query(i % 8);
    for (std::int64_t j = 0; j < 64; ++j) {
      source[static_cast<std::size_t>(i * 64 + j)] = 1.5F * query[j];
    }
  }
  keys = make_keys(source, 64, DType::bf16);
  const auto index = built(keys.view());
  // A graph of inner products finds 0.3 to 0.6 of them.
  EXPECT_GE(check_result(keys, queries, 32, search(*index, queries, 32)), GetParam().recall - 0.15);
}

TEST_P(EveryIndex, KAboveTheNumberOfKeysGivesThemAll) {
  const Keys keys = make_keys(clustered(300, 32, 7), 32, DType::bf16);
  const auto index = built(keys.view());
  const Queries queries = make_queries(keys, 3, everything, 8);
  for (const std::int64_t k : {std::int64_t{300}, std::int64_t{301}, std::int64_t{1} << 40}) {
    EXPECT_EQ(check_result(keys, queries, k, search(*index, queries, k)), 1.0);
  }
}

TEST_P(EveryIndex, NoKeysAndOneKey) {
  const Keys keys = make_keys(clustered(1, 64, 9), 64, DType::bf16);
  const Queries queries = make_queries(keys, 2, everything, 10);
  auto index = make_index(GetParam().spec);
  index->add({});
  index->build();
  const SearchResult nothing = search(*index, queries, 4);
  EXPECT_EQ(nothing.queries(), 2);
  EXPECT_EQ(nothing.positions(0).size() + nothing.positions(1).size(), 0U);
  const std::string& spec = GetParam().spec;
  if (spec.find("IVF64") != std::string::npos || spec.find("PQ") != std::string::npos) {
    EXPECT_THROW(index->add(keys.view()), InvalidArgument);  // 64 lists, 16 centroids of one key
    return;
  }
  index->add(keys.view());  // the first keys may come after build
  EXPECT_EQ(check_result(keys, queries, 4, search(*index, queries, 4)), 1.0);
}

TEST_P(EveryIndex, DuplicateKeysAreAllFound) {
  std::vector<float> source = clustered(2000, 32, 11);
  for (std::size_t i = 0; i < 1000; ++i) {  // half of the keys are one and the same
    std::copy_n(source.begin(), 32, source.begin() + static_cast<std::ptrdiff_t>(i * 64));
  }
  const Keys keys = make_keys(source, 32, DType::bf16);
  const auto index = built(keys.view());
  Queries queries = make_queries(keys, 1, everything, 12);
  std::copy_n(source.begin(), 32, queries.data.begin());
  const SearchResult result = search(*index, queries, 200);
  check_result(keys, queries, 200, result);
}

TEST_P(EveryIndex, KeysMayBeAddedInPartsBeforeAndAfterBuild) {
  const Keys keys = make_keys(clustered(6000, 64, 13), 64, DType::bf16);
  auto index = make_index(GetParam().spec);
  index->add(keys.view(0, 1500));
  index->add(keys.view(1500, 3000));
  index->build();
  const Queries early = make_queries(keys, 6, everything, 14);
  const SearchResult before = search(*index, early, 32);
  for (const std::int64_t position : before.positions(0)) EXPECT_LT(position, 3000);
  index->add(keys.view(3000, 3001));
  index->add(keys.view(3001, 6000));
  EXPECT_EQ(index->size(), 6000);
  const Queries queries = make_queries(keys, 24, everything, 15);
  // Lists and codes trained on the first half suit the second a little less.
  EXPECT_GE(check_result(keys, queries, 32, search(*index, queries, 32)), GetParam().recall - 0.03);
}

TEST_P(EveryIndex, OddSizesAndUnalignedKeysWork) {
  for (const std::int64_t dim : {40, 96}) {
    const Keys keys = make_keys(clustered(1500, dim, 16), dim, DType::bf16, 2);
    const auto index = built(keys.view());
    const Queries queries = make_queries(keys, 5, everything, 17);
    EXPECT_GE(check_result(keys, queries, 16, search(*index, queries, 16)), GetParam().recall);
  }
}

TEST_P(EveryIndex, ConcurrentSearchesEqualSequentialOnes) {
  const Keys keys = make_keys(clustered(4000, 64, 18), 64, DType::bf16);
  const auto index = built(keys.view());
  const Queries queries = make_queries(keys, 12, {4, 3900}, 19);
  const SearchResult expected = search(*index, queries, 20);
  std::vector<std::thread> threads;
  std::vector<int> different(4, 0);
  for (std::size_t t = 0; t < different.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 5; ++round) {
        const SearchResult result = search(*index, queries, 20);
        for (std::int64_t q = 0; q < 12; ++q) {
          const auto a = expected.positions(q);
          const auto b = result.positions(q);
          different[t] += std::equal(a.begin(), a.end(), b.begin(), b.end()) ? 0 : 1;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::accumulate(different.begin(), different.end(), 0), 0);
}

TEST_P(EveryIndex, SpecWithDefaultsMakesTheSameIndex) {
  const std::string spec = make_index(GetParam().spec)->spec();
  EXPECT_EQ(make_index(spec)->spec(), spec);
}

TEST_P(EveryIndex, MisuseIsRefused) {
  const Keys keys = make_keys(clustered(500, 64, 20), 64, DType::bf16);
  const Queries queries = make_queries(keys, 2, everything, 21);
  auto index = make_index(GetParam().spec);
  SearchResult result;
  index->add(keys.view(0, 300));
  EXPECT_THROW(index->search(queries.block(), 4, result), InvalidArgument);  // not built
  index->build();
  EXPECT_THROW(index->build(), InvalidArgument);
  EXPECT_THROW(index->search(queries.block(), 0, result), InvalidArgument);
  QueryBlock narrow = queries.block();
  narrow.dim = 63;
  EXPECT_THROW(index->search(narrow, 4, result), InvalidArgument);
  QueryBlock unranged = queries.block();
  unranged.allowed = unranged.allowed.first(1);
  EXPECT_THROW(index->search(unranged, 4, result), InvalidArgument);

  EXPECT_THROW(index->add(keys.view(301, 400)), InvalidArgument);  // a gap
  KeyView view = keys.view(300, 400);
  view.dim = 32;
  EXPECT_THROW(index->add(view), InvalidArgument);
  view = keys.view(300, 400);
  view.dtype = DType::f16;
  EXPECT_THROW(index->add(view), InvalidArgument);
  view = keys.view(300, 400);
  view.stride_bytes = 64;
  EXPECT_THROW(index->add(view), InvalidArgument);
  EXPECT_EQ(index->size(), 300);
  check_result(make_keys(clustered(500, 64, 20), 64, DType::bf16), queries, 1,
               search(*index, queries, 1));  // still works
}

INSTANTIATE_TEST_SUITE_P(
    Specs, EveryIndex,
    testing::Values(Case{"exact", 1.0}, Case{"codes:k=16", 0.9}, Case{"faiss:Flat", 1.0},
                    Case{"faiss:IVF", 0.9}, Case{"faiss:IVF64,SQ8", 0.9}, Case{"ivf", 0.9},
                    Case{"ivf:size=4,share=100", 0.9}, Case{"faiss:HNSW32", 0.9},
                    Case{"faiss:PQ8x6", 0.8}, Case{"faiss:IVF,PQ8x6", 0.8}, Case{"hnsw", 0.9},
                    Case{"hnsw:M=12,efc=80,ef=400", 0.9}, Case{"quest:page=1", 0.95},
                    Case{"quest:page=16", 0.03}, Case{"sparq:r=16", 0.4}, Case{"squeezed:c=5", 0.2},
                    Case{"squeezed:c=5,coarse=1", 0.2}, Case{"lowrank:r=16", 0.4},
                    Case{"retroinfer:size=16,segment=1024", 0.2}),
    [](const auto& info) {
      std::string name = info.param.spec;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
      return name;
    });

TEST(ExactIndex, ManyQueriesOverManyBlocksFindWhatFewDo) {
  const Keys keys = make_keys(clustered(40000, 16, 30), 16, DType::bf16);
  auto index = make_index("exact");
  index->add(keys.view());
  index->build();
  Queries queries = make_queries(keys, 300, everything, 31);
  for (std::size_t i = 0; i < 300; ++i)
    queries.allowed[i] = {static_cast<std::int64_t>(i * 100), 40000 - static_cast<std::int64_t>(i)};
  EXPECT_EQ(check_result(keys, queries, 10, search(*index, queries, 10)), 1.0);
}

TEST(ExactIndex, KeysThatAllTieAreFoundInOrderOfPosition) {
  const Keys keys = make_keys(std::vector<float>(50000 * 8, 0.5F), 8, DType::bf16);
  auto index = make_index("exact");
  index->add(keys.view());
  index->build();
  const Queries queries = make_queries(keys, 2, {100, 49000}, 35);
  const SearchResult result = search(*index, queries, 500);
  for (std::size_t i = 0; i < 500; ++i) {
    ASSERT_EQ(result.positions(1)[i], 100 + static_cast<std::int64_t>(i));
  }
}

TEST(InPlaceGraphs, HoldLessThanTheKeysTheyIndex) {
  const Keys keys = make_keys(clustered(3000, 256, 32), 256, DType::f32);
  for (const char* spec : {"hnsw", "faiss:HNSW32"}) {
    auto index = make_index(spec);
    index->add(keys.view());
    const std::int64_t empty = index->memory();
    index->build();
    EXPECT_GT(index->memory(), empty + 3000 * 32 * 4) << spec;  // the links are counted
    EXPECT_LT(index->memory(), 3000 * 256 * 4 / 2) << spec;
  }
}

TEST(MakeIndex, MalformedSpecsAreRefusedInOneLine) {
  for (const std::string spec : {"",
                                 ":",
                                 "exactt",
                                 "Exact",
                                 "exact:1",
                                 "exact:",
                                 "hnsw:",
                                 "hnsw:M=0",
                                 "hnsw:M=1",
                                 "hnsw:M=abc",
                                 "hnsw:M=",
                                 "hnsw:M",
                                 "hnsw:M=-4",
                                 "hnsw:M=16,",
                                 "hnsw:M=16,M=8",
                                 "hnsw:foo=1",
                                 "hnsw:M=99999999999999999999",
                                 "hnsw:M=1e3",
                                 "hnsw:M=16;ef=3",
                                 "faiss",
                                 "faiss:",
                                 "faiss:;",
                                 "faiss:Nonsense",
                                 "faiss:IVF0",
                                 "faiss:IVF-5",
                                 "faiss:IVF99999999999999999999",
                                 "faiss:HNSW0",
                                 "faiss:HNSW1",
                                 "faiss:HNSW100000",
                                 "faiss:PQ4x30",
                                 "faiss:PQ16x12",
                                 "faiss:PQ16x3",
                                 "faiss:PQ",
                                 "faiss:PQ0",
                                 "faiss:PQ16x",
                                 "faiss:IVF16777217,Flat",
                                 "faiss:Flat;nprobe=3",
                                 "faiss:IVF64,SQ8;",
                                 "faiss:IVF64,SQ8;ef=3",
                                 "faiss:HNSW32;nprobe=3",
                                 "faiss:HNSW32;ef=x",
                                 "faiss:IVF,",
                                 "faiss:IVF64,SQ8\nx",
                                 "ivfs",
                                 "ivf:",
                                 "ivf:size=0",
                                 "ivf:share=0",
                                 "quest:page=0",
                                 "quest:pages=16",
                                 "sparq:r=0",
                                 "squeezed:",
                                 "none:1",
                                 "pages:size=16"}) {
    try {
      make_index(spec);
      FAIL() << "accepted \"" << spec << "\"";
    } catch (const InvalidArgument& e) {
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << spec;
      EXPECT_GT(std::string(e.what()).size(), 20U) << spec;
    }
  }
  for (const std::string& spec :
       {std::string("faiss:") + std::string(100000, 'I'), std::string(100000, 'x'),
        "hnsw:" + std::string(100000, 'M'), std::string("faiss:IVF64,SQ8\0,", 17)}) {
    try {
      make_index(spec);
      FAIL() << "accepted a hostile spec";
    } catch (const InvalidArgument& e) {
      EXPECT_LT(std::string(e.what()).size(), 1000U);
    }
  }
}

TEST(MakeIndex, TheMessageSuggestsTheNearestName) {
  try {
    make_index("exactt");
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find("did you mean exact?"), std::string::npos) << e.what();
  }
}

TEST(MakeIndex, MoreListsThanKeysAreRefusedWithARemedy) {
  const Keys keys = make_keys(clustered(100, 64, 33), 64, DType::bf16);
  auto index = make_index("faiss:IVF256,SQ8");
  index->add(keys.view());
  try {
    index->build();
    FAIL();
  } catch (const InvalidArgument& e) {
    EXPECT_NE(std::string(e.what()).find("256 lists"), std::string::npos) << e.what();
  }
}

TEST(Add, ViewsThatCannotBeRightAreRefused) {
  const Keys keys = make_keys(clustered(10, 64, 34), 64, DType::bf16);
  for (const auto& change : std::vector<std::function<void(KeyView&)>>{
           [](KeyView& v) { v.count = -1; }, [](KeyView& v) { v.data = nullptr; },
           [](KeyView& v) { v.dim = 0; }, [](KeyView& v) { v.dim = std::int64_t{1} << 40; },
           [](KeyView& v) { v.stride_bytes = 127; }}) {
    KeyView view = keys.view();
    change(view);
    EXPECT_THROW(make_index("exact")->add(view), InvalidArgument);
  }
}

}  // namespace
}  // namespace topkv
