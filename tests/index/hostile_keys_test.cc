// Every kind of index over keys that have brought down libraries beneath it: few, equal, huge,
// tiny, of dims that no code divides. Whatever they are, a search finds what is allowed, with the
// right scores, or the build is refused with InvalidArgument.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "tests/support/key_cases.h"
#include "topkv/error.h"
#include "topkv/key_index.h"

namespace topkv {
namespace {

using test::check_result;
using test::everything;
using test::Keys;
using test::make_keys;
using test::Queries;
using test::search;

using Normal = std::function<float()>;

/// Keys made element by element, of position i and place j.
struct Hostile {
  std::string name;
  std::int64_t count;
  std::int64_t dim;
  std::function<float(std::int64_t i, std::int64_t j, const Normal& normal)> element;
};

constexpr float largest = std::numeric_limits<float>::max();

float sign(std::int64_t i) { return i % 2 == 0 ? 1.0F : -1.0F; }

std::vector<Hostile> hostile_keys() {
  const auto normal = [](std::int64_t, std::int64_t, const Normal& x) { return x(); };
  const auto times = [](float size) {
    return [size](std::int64_t, std::int64_t, const Normal& x) { return size * x(); };
  };
  const auto same = [](std::int64_t, std::int64_t j, const Normal&) {
    return 0.1F * static_cast<float>(j);
  };
  std::vector<Hostile> all;
  for (const std::int64_t count : {1, 2, 3, 15, 17, 100, 257}) {
    all.push_back({"count_" + std::to_string(count), count, 64, normal});
  }
  for (const std::int64_t dim : {1, 3, 33, 40, 100}) {
    all.push_back({"dim_" + std::to_string(dim), 600, dim, normal});
  }
  all.push_back({"same_17", 17, 64, same});
  all.push_back({"same_101", 101, 64, same});
  all.push_back({"same_1200", 1200, 64, same});
  all.push_back({"zeros", 600, 64, [](auto, auto, const Normal&) { return 0.0F; }});
  all.push_back({"two_clusters", 600, 64, [](std::int64_t i, std::int64_t j, const Normal&) {
                   return i % 2 == 0 ? -1.0F : 1.0F + static_cast<float>(j);
                 }});
  all.push_back({"denormal", 600, 64, times(1e-41F)});
  all.push_back({"tiny", 600, 64, times(1e-30F)});
  all.push_back({"1e5", 600, 64, times(1e5F)});
  all.push_back({"1e15", 600, 64, times(1e15F)});
  all.push_back({"1e19", 600, 64, times(1e19F)});
  all.push_back({"1e30", 600, 64, times(1e30F)});
  all.push_back({"limits", 600, 64, [](std::int64_t i, std::int64_t j, const Normal&) {
                   return largest * sign(i + j);
                 }});
  all.push_back({"limit_alone", 600, 64, [](auto, auto, const Normal&) { return largest; }});
  all.push_back({"one_limit", 600, 64, [](std::int64_t i, std::int64_t, const Normal& x) {
                   return i == 7 ? largest : x();
                 }});
  all.push_back({"all_magnitudes", 600, 64, [](std::int64_t i, std::int64_t j, const Normal& x) {
                   return x() * std::pow(10.0F, static_cast<float>((7 * i + j) % 70 - 35));
                 }});
  return all;
}

Keys keys_of(const Hostile& hostile, DType dtype) {
  std::mt19937 random(11);
  std::normal_distribution<float> distribution;
  const Normal normal = [&] { return distribution(random); };
  const float limit = dtype == DType::f32 ? largest : dtype == DType::bf16 ? 3.3895e38F : 65504.0F;
  std::vector<float> source;
  for (std::int64_t i = 0; i < hostile.count; ++i) {
    for (std::int64_t j = 0; j < hostile.dim; ++j) {
      source.push_back(std::clamp(hostile.element(i, j, normal), -limit, limit));
    }
  }
  return make_keys(source, hostile.dim, dtype);
}

/// Ordinary ones, 0, and ones as hostile as the keys.
Queries hostile_queries(std::int64_t count, std::int64_t dim) {
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  Queries queries;
  queries.dim = dim;
  queries.allowed = {everything, {count / 3, count}, everything, everything, everything, {1, 2}};
  for (const float size : {1.0F, 3.0F, 0.0F, 1e-40F, 1e19F, 1e37F}) {
    for (std::int64_t j = 0; j < dim; ++j) {
      queries.data.push_back(size * std::clamp(normal(random), -4.0F, 4.0F));
    }
  }
  return queries;
}

class HostileKeys : public testing::TestWithParam<std::string> {};

TEST_P(HostileKeys, AreFoundOrRefused) {
  // FAISS's codes are made of float32 whatever the keys are; the others read them in place.
  const bool codes = GetParam().starts_with("faiss:") && !GetParam().starts_with("faiss:HNSW");
  const std::vector<DType> dtypes =
      codes ? std::vector{DType::f32} : std::vector{DType::f32, DType::bf16, DType::f16};
  for (const Hostile& hostile : hostile_keys()) {
    for (const DType dtype : dtypes) {
      SCOPED_TRACE(hostile.name + " " + std::string(name_of(dtype)));
      const Keys keys = keys_of(hostile, dtype);
      const auto index = make_index(GetParam());
      index->add(keys.view());
      try {
        index->build();
      } catch (const InvalidArgument& e) {  // too few for so many centroids; parts of no dim
        EXPECT_TRUE(hostile.count < 300 || hostile.dim % 16 != 0) << e.what();
        continue;
      }
      const Queries queries = hostile_queries(keys.count, keys.dim);
      for (const std::int64_t k : {1, 10, 3000}) {
        check_result(keys, queries, k, search(*index, queries, k));
      }
      if (testing::Test::HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Specs, HostileKeys,
                         testing::Values("exact", "codes:k=4", "codes", "hnsw:M=2,efc=8", "hnsw:M=8,efc=40",
                                         "ivf", "ivf:size=2,share=4", "faiss:Flat",
                                         "faiss:SQ8", "faiss:SQ6", "faiss:SQ4", "faiss:SQfp16",
                                         "faiss:PQ16x4", "faiss:PQ8x5", "faiss:PQ2x6",
                                         "faiss:PQ4x7", "faiss:PQ4", "faiss:HNSW2", "faiss:HNSW8",
                                         "faiss:IVF", "faiss:IVF16,Flat", "faiss:IVF16,SQ8",
                                         "quest:page=16", "sparq:r=8", "squeezed:c=5", "squeezed:c=5,coarse=1",
                                         "lowrank:r=8", "retroinfer:size=8,segment=256", "faiss:IVF16,SQ6", "faiss:IVF16,SQ4", "faiss:IVF16,SQfp16",
                                         "faiss:IVF16,PQ16x4", "faiss:IVF16,PQ4x5",

                                         "faiss:IVF16,PQ4", "faiss:IVF,PQ8x4"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           return name;
                         });

TEST(HostileKeys, ThatAreNotFiniteAreRefusedByIndicesThatLookAtThem) {
  for (const char* spec :
       {"hnsw", "ivf", "faiss:Flat", "faiss:HNSW16", "faiss:IVF16,SQ8", "faiss:PQ16x4",
        "quest:page=16",
        "sparq:r=8", "squeezed:c=5", "lowrank:r=8", "retroinfer:size=16"}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      std::vector<float> source = test::clustered(300, 64, 13);
      source[64 * 123 + 5] = bad;
      const Keys keys = make_keys(source, 64, DType::bf16);
      const auto index = make_index(spec);
      index->add(keys.view());
      try {
        index->build();
        FAIL() << spec << " took " << bad;
      } catch (const InvalidArgument& e) {
        EXPECT_NE(std::string(e.what()).find("position 123"), std::string::npos) << e.what();
      }
    }
  }
}

TEST(QueriesThatAreNotFinite, AreRefusedByEveryIndexNamingTheirNumber) {
  const Keys keys = make_keys(test::clustered(600, 64, 14), 64, DType::bf16);
  for (const char* spec : {"exact", "hnsw", "faiss:Flat", "faiss:HNSW16", "faiss:IVF,SQ8"}) {
    const auto index = make_index(spec);
    index->add(keys.view());
    index->build();
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      Queries queries = test::make_queries(keys, 4, everything, 15);
      queries.data[2 * 64 + 63] = bad;
      SearchResult result;
      try {
        index->search(queries.block(), 3, result);
        FAIL() << spec << " took " << bad;
      } catch (const InvalidArgument& e) {
        EXPECT_NE(std::string(e.what()).find("query 2 is not finite"), std::string::npos)
            << e.what();
      }
    }
  }
}

}  // namespace
}  // namespace topkv
