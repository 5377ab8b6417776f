// Random calls on every kind of index, whatever it is built of and asked, against float64. Seeded;
// for more than CI runs: index_fuzz_test --gtest_shuffle --gtest_random_seed=1 --gtest_repeat=100
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/support/key_cases.h"
#include "topkv/error.h"
#include "topkv/key_index.h"

namespace topkv {
namespace {

using test::Keys;
using test::Queries;

class Chance {
 public:
  explicit Chance(unsigned seed) : random_(seed) {}
  /// From low to high, both included.
  std::int64_t number(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  /// From low to high, small ones as often as large ones.
  std::int64_t size(std::int64_t low, std::int64_t high) {
    return std::clamp(number(low, std::int64_t{1} << number(
                                      0, 63 - __builtin_clzll(static_cast<std::uint64_t>(high)))),
                      low, high);
  }
  bool one_in(std::int64_t n) { return number(1, n) == 1; }
  float normal() { return normal_(random_); }
  template <class T>
  const T& of(const std::vector<T>& all) {
    return all[static_cast<std::size_t>(number(0, static_cast<std::int64_t>(all.size()) - 1))];
  }

 private:
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
};

std::string some_spec(Chance& chance) {
  const std::string code =
      chance.of<std::string>({"Flat", "SQ8", "SQ6", "SQ4", "SQfp16", "PQ1x4", "PQ2x5", "PQ4x8"});
  switch (chance.number(0, 7)) {
    case 7:
      return "ivf:size=" + std::to_string(chance.size(1, 60)) +
             ",share=" + std::to_string(chance.size(1, 100));
    case 0:
      return "exact";
    case 6:
      return "codes:k=" + std::to_string(4 * chance.number(1, 8));
    case 1:
      return "hnsw:M=" + std::to_string(chance.number(2, 20)) +
             ",efc=" + std::to_string(chance.size(1, 100)) +
             ",ef=" + std::to_string(chance.size(1, 300) - 1);
    case 2:
      return "faiss:HNSW" + std::to_string(chance.number(2, 20)) +
             ";efc=" + std::to_string(chance.size(1, 60)) +
             ",ef=" + std::to_string(chance.size(1, 300) - 1);
    case 3:
      return "faiss:" + code;
    case 4:
      return "faiss:IVF," + code + ";nprobe=" + std::to_string(chance.number(0, 3));
    default:
      return "faiss:IVF" + std::to_string(chance.size(1, 40)) + "," + code;
  }
}

/// Ordinary keys, many of which may be equal, few may differ or be large.
std::vector<float> some_keys(Chance& chance, std::int64_t count, std::int64_t dim) {
  const std::int64_t different = chance.one_in(3) ? chance.size(1, count) : count;
  const int digits = chance.one_in(4) ? static_cast<int>(chance.number(-44, 38)) : 0;
  const std::int64_t huge = chance.one_in(5) ? chance.number(0, count - 1) : -1;
  std::vector<float> out;
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t j = 0; j < dim; ++j) {
      float x = chance.normal() * std::pow(10.0F, static_cast<float>(digits));
      if (i >= different) {
        x = out[static_cast<std::size_t>(i % different * dim + j)];
      } else if (i == huge) {
        x *= 1e20F;
      }
      out.push_back(std::clamp(x, -65000.0F * (digits > 3 ? 1e30F : 1.0F),
                               65000.0F * (digits > 3 ? 1e30F : 1.0F)));
    }
  }
  return out;
}

PositionRange some_range(Chance& chance, std::int64_t count) {
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const auto end = [&] {
    return chance.one_in(8) ? chance.of<std::int64_t>({least, least + 1, -1, most, most - 1})
                            : chance.number(-2, count + 2);
  };
  if (chance.one_in(3)) return {0, count};
  return {end(), end()};
}

Queries some_queries(Chance& chance, std::int64_t keys, std::int64_t dim) {
  Queries queries;
  queries.dim = dim;
  for (std::int64_t i = chance.number(0, 6); i > 0; --i) {
    queries.allowed.push_back(some_range(chance, keys));
    const float size =
        chance.one_in(4) ? std::pow(10.0F, static_cast<float>(chance.number(-40, 37))) : 1.0F;
    for (std::int64_t j = 0; j < dim; ++j) {
      queries.data.push_back(size * std::clamp(chance.normal(), -3.0F, 3.0F));
    }
  }
  return queries;
}

/// What the index has of the keys so far.
Keys first_of(const Keys& keys, std::int64_t count) {
  Keys part = keys;
  part.count = count;
  return part;
}

void run_one(unsigned seed) {
  Chance chance(seed);
  const std::string spec = some_spec(chance);
  const std::int64_t dim = chance.one_in(3) ? chance.size(1, 130) : 4 * chance.number(1, 20);
  const std::int64_t count = chance.size(1, 1500);
  const auto dtype = chance.of<DType>({DType::f32, DType::bf16, DType::f16});
  std::vector<float> source = some_keys(chance, count, dim);
  const float limit = dtype == DType::f16 ? 65000.0F : 3.3e38F;
  for (float& x : source) x = std::clamp(x, -limit, limit);
  const Keys keys = test::make_keys(source, dim, dtype, bytes_of(dtype) * chance.number(0, 3));
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + spec + ", " + std::to_string(count) +
               " keys of dim " + std::to_string(dim) + ", " + std::string(name_of(dtype)));
  const auto index = make_index(spec);
  bool built = false;
  std::int64_t added = 0;
  while (added < count || !built) {
    const std::int64_t end = std::min(count, added + chance.size(1, count));
    try {
      if (added < count) {
        index->add(keys.view(added, end));
        added = end;
      }
      if (!built && (added == count || chance.one_in(3))) {
        index->build();
        built = true;
      }
    } catch (const InvalidArgument& e) {
      const std::string text = e.what();
      if (text.find("equal parts") != std::string::npos) return;
      ASSERT_NE(text.find("need at least as many keys"), std::string::npos) << text;
      if (added == count) return;
    }
    ASSERT_EQ(index->size(), added);
    ASSERT_EQ(index->inserted(), built ? added : 0);
    if (!built) continue;
    const Queries queries = some_queries(chance, added, dim);
    const std::int64_t k =
        chance.one_in(4) ? std::numeric_limits<std::int64_t>::max() : chance.size(1, 2 * count);
    SearchResult result;
    index->search(queries.block(), k, result);
    const double recall = test::check_result(first_of(keys, added), queries, k, result);
    if (spec == "exact") {
      EXPECT_EQ(recall, 1.0);
    }
  }
  EXPECT_GT(index->memory(), 0);
}

TEST(IndexFuzz, WhateverIsAddedAndAskedTheResultIsRight) {
  const auto start = static_cast<unsigned>(testing::UnitTest::GetInstance()->random_seed()) * 1000U;
  for (unsigned i = 0; i < 250 && !testing::Test::HasFailure(); ++i) run_one(start + i);
}

}  // namespace
}  // namespace topkv
