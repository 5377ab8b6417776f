// Selection methods of the literature, each against float64 written from its paper, and the
// properties that they must have.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "index/methods/cluster_index.h"
#include "index/methods/quest_index.h"
#include "index/methods/sparq_index.h"
#include "tests/support/key_cases.h"
#include "tests/support/reference.h"
#include "topkv/error.h"
#include "topkv/key_index.h"

namespace topkv {
namespace {

using test::clustered;
using test::everything;
using test::Keys;
using test::make_keys;
using test::make_queries;
using test::Queries;
using test::search;

std::unique_ptr<KeyIndex> built(const std::string& spec, const KeyView& keys) {
  auto index = make_index(spec);
  index->add(keys);
  index->build();
  return index;
}

std::set<std::int64_t> found(const SearchResult& result, std::int64_t query) {
  const auto positions = result.positions(query);
  return {positions.begin(), positions.end()};
}

/// The rows that a page or cluster ranking must choose: whole groups, best first, the last in part.
/// Scores of groups that differ by rounding alone may change places: false.
bool chosen_by_groups(const std::map<std::int64_t, double>& scores,
                      const std::function<std::vector<std::int64_t>(std::int64_t)>& rows_of,
                      std::int64_t k, const std::set<std::int64_t>& have, double tolerance) {
  std::vector<std::pair<double, std::int64_t>> order;
  for (const auto& [group, score] : scores) order.emplace_back(-score, group);
  std::sort(order.begin(), order.end());
  std::int64_t room = k;
  for (const auto& [negative, group] : order) {
    const std::vector<std::int64_t> rows = rows_of(group);
    const auto taken = std::count_if(rows.begin(), rows.end(),
                                     [&](std::int64_t row) { return have.contains(row); });
    const auto wanted = std::min<std::int64_t>(room, std::ssize(rows));
    if (taken != wanted) {  // only where the group is as good as the last one that was chosen
      std::int64_t filled = 0;
      double last = 0;
      for (const auto& [other, at] : order) {
        last = other;
        filled += std::ssize(rows_of(at));
        if (filled >= k) break;
      }
      if (std::abs(last - negative) > tolerance) return false;
    }
    room -= wanted;
  }
  return std::ssize(have) == k;
}

TEST(Quest, ChoosesThePagesWhoseBoundsScoreHighest) {
  constexpr std::int64_t dim = 48;
  constexpr std::int64_t page = 16;
  const Keys keys = make_keys(clustered(3000, dim, 1), dim, DType::bf16);
  const auto index = built("quest:page=16", keys.view());
  for (const PositionRange allowed : {PositionRange{0, 3000}, PositionRange{21, 2701}}) {
    const Queries queries = make_queries(keys, 8, allowed, 2);
    const SearchResult result = search(*index, queries, 200);
    for (std::int64_t q = 0; q < 8; ++q) {
      std::map<std::int64_t, double> scores;  // section 3.3
      for (std::int64_t p = allowed.begin / page; p * page < allowed.end; ++p) {
        for (std::int64_t i = 0; i < dim; ++i) {
          double most = -1e300;
          double least = 1e300;
          for (std::int64_t r = p * page; r < std::min<std::int64_t>((p + 1) * page, 3000); ++r) {
            const double x = keys.values[static_cast<std::size_t>(r * dim + i)];
            most = std::max(most, x);
            least = std::min(least, x);
          }
          const double of_q = queries.query(q)[i];
          scores[p] += std::max(of_q * most, of_q * least);
        }
      }
      const auto rows_of = [&](std::int64_t p) {
        std::vector<std::int64_t> rows;
        for (std::int64_t r = p * page; r < (p + 1) * page; ++r) {
          if (allowed.contains(r)) rows.push_back(r);
        }
        return rows;
      };
      EXPECT_TRUE(chosen_by_groups(scores, rows_of, 200, found(result, q), 1e-3)) << q;
    }
  }
}

TEST(Quest, APagesScoreIsABoundOfItsKeysScores) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const Keys keys = make_keys(clustered(1003, 40, 3), 40, dtype);
    QuestIndex index(7);
    index.add(keys.view(0, 500), {});
    index.build({});
    index.add(keys.view(500, 501), {});  // the page that was short is made anew
    index.add(keys.view(501, 1003), {});
    const Queries queries = make_queries(keys, 5, everything, 4);
    std::vector<float> scores(static_cast<std::size_t>(5 * index.pages()));
    index.score_pages(queries.data.data(), 5, {0, index.pages()}, scores.data());
    for (std::int64_t q = 0; q < 5; ++q) {
      for (std::int64_t i = 0; i < 1003; ++i) {
        const double bound = scores[static_cast<std::size_t>(q * index.pages() + i / 7)];
        EXPECT_GE(bound, test::score(keys, queries.query(q), i) -
                             test::score_tolerance(keys, queries.query(q), i) - 1e-4);
      }
    }
  }
}

TEST(Quest, PagesOfOneKeyAreExactSearch) {
  const Keys keys = make_keys(clustered(2000, 64, 5), 64, DType::bf16);
  const Queries queries = make_queries(keys, 6, {10, 1990}, 6);
  EXPECT_EQ(test::check_result(keys, queries, 50,
                               search(*built("quest:page=1", keys.view()), queries, 50)),
            1.0);
}

/// Algorithm 1 of the paper, with |q| and weights summed over the heads of a group.
struct SparqReference {
  std::vector<std::int64_t> components;
  std::vector<std::vector<double>> weights;  // per head, over the range

  SparqReference(const Keys& keys, const Queries& queries, std::int64_t first, std::int64_t group,
                 std::int64_t r, PositionRange range) {
    std::vector<std::pair<double, std::int64_t>> sizes;
    for (std::int64_t i = 0; i < keys.dim; ++i) {
      double sum = 0;
      for (std::int64_t h = 0; h < group; ++h) sum += std::abs(queries.query(first + h)[i]);
      sizes.emplace_back(-sum, i);
    }
    std::sort(sizes.begin(), sizes.end());
    for (std::int64_t i = 0; i < r; ++i)
      components.push_back(sizes[static_cast<std::size_t>(i)].second);
    for (std::int64_t h = 0; h < group; ++h) {
      const float* q = queries.query(first + h);
      double all = 0;
      double read = 0;
      for (std::int64_t i = 0; i < keys.dim; ++i) all += std::abs(q[i]);
      for (const std::int64_t i : components) read += std::abs(q[i]);
      const double temperature = std::sqrt(static_cast<double>(keys.dim) * read / all);
      std::vector<double> of;
      double total = 0;
      for (std::int64_t row = range.begin; row < range.end; ++row) {
        double sum = 0;
        for (const std::int64_t i : components)
          sum += double{q[i]} * keys.values[static_cast<std::size_t>(row * keys.dim + i)];
        of.push_back(std::exp(sum / temperature));
        total += of.back();
      }
      for (double& weight : of) weight /= total;
      weights.push_back(of);
    }
  }
};

TEST(Sparq, ChoosesByTheLargestComponentsOfTheGroupsQueries) {
  const Keys keys = make_keys(clustered(3000, 64, 7), 64, DType::bf16);
  const auto index = built("sparq:r=12", keys.view());
  for (const std::int64_t group : {1, 4}) {
    const PositionRange range{37, 2900};
    const Queries queries = make_queries(keys, 8, range, 8);
    QueryBlock block = queries.block();
    block.group = group;
    SearchResult result;
    index->search(block, 64, result);
    for (std::int64_t first = 0; first < 8; first += group) {
      const SparqReference want(keys, queries, first, group, 12, range);
      std::vector<double> sums(static_cast<std::size_t>(range.size()));
      for (const auto& of : want.weights) {
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += of[i];
      }
      std::vector<double> sorted = sums;
      std::nth_element(sorted.begin(), sorted.begin() + 63, sorted.end(), std::greater<>());
      for (std::int64_t h = 0; h < group; ++h) {
        const std::set<std::int64_t> have = found(result, first + h);
        EXPECT_EQ(have.size(), 64U);
        for (const std::int64_t row : have) {
          EXPECT_GE(sums[static_cast<std::size_t>(row - range.begin)], sorted[63] * (1 - 1e-4));
        }
      }
    }
  }
}

TEST(Sparq, WithAllComponentsIsExactSearch) {
  const Keys keys = make_keys(clustered(2000, 32, 9), 32, DType::bf16);
  const auto index = built("sparq:r=32", keys.view());
  const Queries queries = make_queries(keys, 6, {10, 1990}, 10);
  EXPECT_EQ(test::check_result(keys, queries, 50, search(*index, queries, 50)), 1.0);
}

TEST(ChoosingIndices, QueriesThatAreNoWholeGroupsAreRefused) {
  const Keys keys = make_keys(clustered(100, 32, 9), 32, DType::bf16);
  const auto index = built("sparq:r=32", keys.view());
  Queries queries = make_queries(keys, 6, {10, 90}, 10);
  QueryBlock block = queries.block();
  SearchResult result;
  for (const std::int64_t group : {4, 0, -1}) {
    block.group = group;
    EXPECT_THROW(index->search(block, 5, result), InvalidArgument) << group;
  }
  block.group = 3;
  queries.allowed[4] = {10, 89};
  EXPECT_THROW(index->search(block, 5, result), InvalidArgument);
}

TEST(Clusters, TheBestCentroidsKeysAreChosen) {
  constexpr std::int64_t dim = 32;
  const Keys keys = make_keys(clustered(3000, dim, 11), dim, DType::bf16);
  const PositionRange allowed{50, 2800};
  const Queries queries = make_queries(keys, 6, allowed, 12);
  for (const ClusterParams& params :
       {ClusterParams{.text = "squeezed", .keys_per_cluster = 20},
        ClusterParams{
            .text = "retroinfer", .keys_per_cluster = 16, .segment = 700, .centred = true}}) {
    ClusterIndex index(params);
    index.add(keys.view(0, 2900), {});
    index.build({});
    index.add(keys.view(2900, 3000), {});
    const Grouping grouping = index.grouping();
    EXPECT_NEAR(static_cast<double>(grouping.groups), 2900 / params.keys_per_cluster, 60);
    std::map<std::int64_t, std::vector<std::int64_t>> members;
    for (std::int64_t row = 0; row < 3000; ++row) members[grouping.of(row)].push_back(row);
    EXPECT_EQ(std::ssize(members), grouping.groups);  // none is empty
    if (params.segment > 0) {
      for (const auto& [cluster, rows] : members) {
        const auto segment = [](std::int64_t row) { return std::min<std::int64_t>(row / 700, 3); };
        for (const std::int64_t row : rows) {
          if (row < 2900) {
            EXPECT_EQ(segment(row), segment(rows.front()));
          }
        }
      }
    }
    const SearchResult result = search(index, queries, 150);
    for (std::int64_t q = 0; q < 6; ++q) {
      std::map<std::int64_t, double> scores;  // of centroids, the mean of the cluster's keys
      for (const auto& [cluster, rows] : members) {
        for (const std::int64_t row : rows)
          scores[cluster] += test::score(keys, queries.query(q), row);
        scores[cluster] /= static_cast<double>(rows.size());
      }
      const auto rows_of = [&](std::int64_t cluster) {
        std::vector<std::int64_t> rows;
        for (const std::int64_t row : members[cluster]) {
          if (allowed.contains(row)) rows.push_back(row);
        }
        return rows;
      };
      EXPECT_TRUE(chosen_by_groups(scores, rows_of, 150, found(result, q), 1e-3))
          << params.text << q;
    }
  }
}

TEST(Clusters, SimilarKeysAreTogether) {
  // 40 directions, of each 50 keys of unequal length.
  constexpr std::int64_t dim = 16;
  std::vector<float> source = clustered(2000, dim, 13);
  for (std::int64_t i = 40; i < 2000; ++i) {
    for (std::int64_t j = 0; j < dim; ++j) {
      source[static_cast<std::size_t>(i * dim + j)] =
          source[static_cast<std::size_t>(i % 40 * dim + j)] *
          (0.5F + static_cast<float>(i) / 1e3F);
    }
  }
  const Keys keys = make_keys(source, dim, DType::f32);
  ClusterIndex index({.text = "squeezed", .keys_per_cluster = 5});
  index.add(keys.view(), {});
  index.build({});
  std::map<std::int64_t, std::set<std::int64_t>> directions;
  for (std::int64_t row = 0; row < 2000; ++row)
    directions[index.grouping().of(row)].insert(row % 40);
  for (const auto& [cluster, of] : directions) EXPECT_EQ(of.size(), 1U) << cluster;
}

TEST(Lowrank, FindsKeysThatVaryAlongSoManyAxes) {
  // Keys in a subspace of 6 dims, some way from the origin.
  constexpr std::int64_t dim = 40;
  std::vector<float> source(static_cast<std::size_t>(3000 * dim));
  const std::vector<float> basis = reference::random_floats(6 * dim, 1, 1.0F);
  const std::vector<float> place = reference::random_floats(3000 * 6, 2, 1.0F);
  for (std::int64_t i = 0; i < 3000; ++i) {
    for (std::int64_t j = 0; j < dim; ++j) {
      float& x = source[static_cast<std::size_t>(i * dim + j)];
      x = 3;
      for (std::int64_t a = 0; a < 6; ++a) {
        x += place[static_cast<std::size_t>(i * 6 + a)] *
             basis[static_cast<std::size_t>(a * dim + j)];
      }
    }
  }
  const Keys keys = make_keys(source, dim, DType::f32);
  const Queries queries = make_queries(keys, 8, {100, 2900}, 3);
  const auto recall = [&](const char* spec) {
    return test::check_result(keys, queries, 32, search(*built(spec, keys.view()), queries, 32));
  };
  EXPECT_GT(recall("lowrank:r=6"), 0.97);  // bf16
  EXPECT_LT(recall("lowrank:r=2"), 0.9);
}

}  // namespace
}  // namespace topkv
