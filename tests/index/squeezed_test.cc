// Squeezed Attention's two levels, its thresholds and its questions, against float64 written from
// the paper (squeezed_reference.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "index/methods/squeezed_index.h"
#include "tests/index/squeezed_reference.h"
#include "tests/support/key_cases.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using test::clustered;
using test::dim;
using test::group;
using test::Heads;
using test::Keys;
using test::make_keys;
using test::make_queries;
using test::Queries;
using test::Reference;
using test::rounding;
using test::scale;
using test::value_of;
using Thresholds = SqueezedIndex::Thresholds;

SearchResult ask(const KeyIndex& index, const Queries& queries, std::int64_t k,
                 std::int64_t tokens) {
  QueryBlock block = queries.block();
  block.group = group;
  block.scale = static_cast<float>(scale);
  block.tokens = tokens;
  SearchResult result;
  index.search(block, k, result);
  return result;
}

std::set<std::int64_t> rows_of(const SearchResult& result, std::int64_t query) {
  const auto positions = result.positions(query);
  return {positions.begin(), positions.end()};
}

bool same(const SearchResult& a, const SearchResult& b) {
  bool equal = a.queries() == b.queries();
  for (std::int64_t q = 0; equal && q < a.queries(); ++q)
    equal = std::ranges::equal(a.positions(q), b.positions(q));
  return equal;
}

TEST(Squeezed, ChoosesByTheImportancesOfBothLevels) {
  for (const std::int64_t coarse : {0, 1}) {
    for (const std::int64_t tokens : {1, 3, 12}) {
      Heads heads({.fine = 5, .coarse = coarse, .sparsity = 80});
      heads.learn();
      const SqueezedIndex& index = *heads.indices[0];
      const Reference reference(heads.keys[0], index, coarse > 0);
      Queries queries = make_queries(heads.keys[0], 12 * group, {0, 3000}, 77);
      for (std::int64_t q = 0; q < 12 * group; ++q) {
        // Later tokens see more keys, and not the first ones.
        queries.allowed[static_cast<std::size_t>(q)] = {40 + q / group, 2500 + 30 * (q / group)};
      }
      const Thresholds& thresholds = tokens == 1 ? index.of_token() : index.of_question();
      const double least = value_of(thresholds.fine);
      std::int64_t compared = 0;
      for (const std::int64_t k : {3000, 150}) {
        const SearchResult result = ask(index, queries, k, tokens);
        for (std::int64_t q = 0; q < 12 * group; ++q) {
          std::vector<const float*> question;
          const std::int64_t first = q / group / tokens * tokens;
          for (std::int64_t t = first; t < first + tokens; ++t)
            question.push_back(queries.query(t * group + q % group));
          bool sure = false;
          const auto looked_at = reference.survivors(question, value_of(thresholds.coarse), sure);
          if (!sure) continue;
          ++compared;
          const auto importances = Reference::importances(reference.fine, question, looked_at);
          const std::set<std::int64_t> have = rows_of(result, q);
          const PositionRange range = queries.allowed[static_cast<std::size_t>(q)];
          std::int64_t wanted = 0;
          double worst_had = 1;
          double best_left = 0;
          for (std::size_t c = 0; c < importances.size(); ++c) {
            const bool near = std::abs(importances[c] - least) < rounding * least;
            for (const std::int64_t row : reference.members[c]) {
              const bool had = have.contains(row);
              if (!range.contains(row)) {
                EXPECT_FALSE(had) << row;
                continue;
              }
              if (near) continue;
              const bool above = importances[c] > least;
              wanted += above ? 1 : 0;
              EXPECT_TRUE(above || !had) << row;
              if (k == 3000) {
                EXPECT_EQ(had, above) << row;
              }
              if (had) worst_had = std::min(worst_had, importances[c]);
              if (above && !had) best_left = std::max(best_left, importances[c]);
            }
          }
          EXPECT_GE(std::ssize(have), std::min(k, wanted));
          EXPECT_LE(std::ssize(have), k);
          EXPECT_GE(worst_had, best_left * (1 - rounding));
        }
      }
      EXPECT_GT(compared, 30) << "of 48";
    }
  }
}

TEST(Squeezed, ThresholdsLeaveOutHalfOfTheKeysAndThenWhatWasAskedFor) {
  for (const std::int64_t coarse : {0, 1}) {
    Heads heads({.fine = 5, .coarse = coarse, .sparsity = 80});
    heads.learn();
    for (const bool question : {false, true}) {
      const Thresholds& thresholds =
          question ? heads.indices[0]->of_question() : heads.indices[0]->of_token();
      EXPECT_EQ(heads.indices[1]->of_token().fine, heads.indices[0]->of_token().fine);
      // Shares of keys above a value, at each level: with the threshold's last bin and without.
      const auto share = [&](bool fine, double value) {
        double kept = 0;
        double all = 0;
        for (std::size_t head = 0; head < 2; ++head) {
          const Reference reference(heads.keys[head], *heads.indices[head], coarse > 0);
          for (std::int64_t h = 0; h < group; ++h) {
            for (const auto& queries : heads.observed(head, h, question)) {
              bool sure = false;
              const auto looked_at =
                  reference.survivors(queries, value_of(thresholds.coarse), sure);
              const Reference::Level& level = fine ? reference.fine : reference.coarse;
              const auto importances = fine ? Reference::importances(level, queries, looked_at)
                                            : reference.coarse_importances(queries);
              for (std::size_t c = 0; c < importances.size(); ++c)
                kept += importances[c] > value ? level.keys[c] : 0;
              all += 3000;
            }
          }
        }
        return kept / all;
      };
      const double next = std::exp2(-1.0 / 64);
      EXPECT_LE(share(true, value_of(thresholds.fine) * (1 + rounding)), 0.2);
      EXPECT_GT(share(true, value_of(thresholds.fine) * next * (1 - rounding)), 0.2);
      if (coarse == 0) {
        EXPECT_EQ(thresholds.coarse, SqueezedIndex::bins);
        continue;
      }
      EXPECT_LE(share(false, value_of(thresholds.coarse) * (1 + rounding)), 0.5);
      EXPECT_GT(share(false, value_of(thresholds.coarse) * next * (1 - rounding)), 0.5);
    }
  }
}

TEST(Squeezed, WithAnOpenFirstLevelTheHierarchyIsOneLevel) {
  Heads one({.fine = 5, .sparsity = 85});
  one.learn();
  Heads two({.fine = 5, .coarse = 1, .sparsity = 85});
  two.learn();
  const Queries queries = make_queries(one.keys[0], 12 * group, {15, 2900}, 78);
  const SqueezedIndex& fine = *one.indices[0];
  for (const std::int64_t tokens : {1, 4, 12}) {
    const SearchResult want = ask(fine, queries, 2000, tokens);
    EXPECT_FALSE(same(ask(*two.indices[0], queries, 2000, tokens), want));
    const Thresholds before[] = {two.indices[0]->of_token(), two.indices[0]->of_question()};
    two.indices[0]->set_thresholds({.fine = fine.of_token().fine},
                                   {.fine = fine.of_question().fine});
    EXPECT_TRUE(same(ask(*two.indices[0], queries, 2000, tokens), want)) << tokens;
    two.indices[0]->set_thresholds(before[0], before[1]);
  }
}

TEST(Squeezed, AQuestionOfTheSameTokenAgainIsThatToken) {
  for (const SqueezedParams& params :
       {SqueezedParams{}, SqueezedParams{.sparsity = 80},
        SqueezedParams{.coarse = 1, .sparsity = 80}, SqueezedParams{.coarse = 1}}) {
    Heads heads(params);
    if (params.sparsity + params.coarse > 0) heads.learn();
    SqueezedIndex& index = *heads.indices[0];
    index.set_thresholds(index.of_token(), index.of_token());
    const Queries once = make_queries(heads.keys[0], group, {15, 2900}, 79);
    Queries often = once;
    for (std::int64_t t = 1; t < 5; ++t) {
      often.data.insert(often.data.end(), once.data.begin(), once.data.end());
      often.allowed.insert(often.allowed.end(), once.allowed.begin(), once.allowed.end());
    }
    const SearchResult want = ask(index, once, 400, 1);
    const SearchResult have = ask(index, often, 400, 5);
    for (std::int64_t q = 0; q < 5 * group; ++q)
      EXPECT_EQ(rows_of(have, q), rows_of(want, q % group)) << q;
  }
}

TEST(Squeezed, TokensOfAQuestionAttendTheSameKeysAndOthersTheirOwn) {
  Heads heads({.fine = 5, .coarse = 1, .sparsity = 80});
  heads.learn();
  const SqueezedIndex& index = *heads.indices[0];
  const Queries queries = make_queries(heads.keys[0], 6 * group, {0, 3000}, 80);
  const SearchResult together = ask(index, queries, 3000, 6);
  const SearchResult alone = ask(index, queries, 3000, 1);
  std::set<std::set<std::int64_t>> heads_rows, token_rows;
  for (std::int64_t q = 0; q < 6 * group; ++q) {
    EXPECT_EQ(rows_of(together, q), rows_of(together, q % group));
    heads_rows.insert(rows_of(together, q));
    token_rows.insert(rows_of(alone, q));
  }
  EXPECT_EQ(heads_rows.size(), 2U);  // a selection of each head
  EXPECT_GT(token_rows.size(), 8U);  // each token its own, but for some alike
  // Two questions in a block are searched as each by itself.
  const SearchResult two = ask(index, queries, 3000, 3);
  Queries second = queries;
  second.data.erase(second.data.begin(), second.data.begin() + 3 * group * dim);
  second.allowed.resize(3 * group);
  const SearchResult by_itself = ask(index, second, 3000, 3);
  for (std::int64_t q = 0; q < 3 * group; ++q)
    EXPECT_EQ(rows_of(two, 3 * group + q), rows_of(by_itself, q));
}

TEST(Squeezed, BytesSearchedAreThoseOfTheCentroidsThatAreRead) {
  Heads one({.fine = 5, .sparsity = 80});
  const auto fine = static_cast<std::int64_t>(one.indices[0]->grouping().groups);
  EXPECT_EQ(one.indices[0]->bytes_searched(), fine * dim * 4);
  one.learn();
  EXPECT_EQ(one.indices[0]->bytes_searched(), fine * dim * 4);

  Heads two({.fine = 5, .coarse = 1, .sparsity = 80});
  const Reference reference(two.keys[0], *two.indices[0], true);
  const auto coarse = std::ssize(reference.coarse.keys);
  EXPECT_NEAR(static_cast<double>(coarse), 30, 3);
  EXPECT_EQ(two.indices[0]->bytes_searched(), (coarse + fine) * dim * 4);  // nothing is known yet
  two.learn();
  // What any head of the group looks at is read, on average over the last tokens.
  double read = 0;
  for (std::size_t t = 0; t < two.positions.size(); ++t) {
    std::vector<bool> any(reference.members.size());
    for (std::int64_t h = 0; h < group; ++h) {
      bool sure = false;
      const auto looked_at = reference.survivors(two.observed(0, h, false)[t],
                                                 value_of(two.indices[0]->of_token().coarse), sure);
      for (std::size_t c = 0; c < any.size(); ++c) any[c] = any[c] || looked_at[c];
    }
    read += static_cast<double>(std::count(any.begin(), any.end(), true)) /
            static_cast<double>(two.positions.size());
  }
  EXPECT_LT(read, 0.9 * static_cast<double>(fine));
  EXPECT_NEAR(static_cast<double>(two.indices[0]->bytes_searched()),
              (static_cast<double>(coarse) + read) * dim * 4, dim * 4);
}

TEST(Squeezed, LaterKeysJoinClustersOfBothLevels) {
  const Keys keys = make_keys(clustered(3000, dim, 20), dim, DType::bf16);
  SqueezedIndex index({.fine = 5, .coarse = 1});
  index.add(keys.view(0, 2600), {});
  index.build({});
  const std::int64_t clusters = index.grouping().groups;
  index.add(keys.view(2600, 3000), {});
  EXPECT_EQ(index.grouping().groups, clusters);
  index.set_thresholds({.coarse = 740}, {.coarse = 740});
  const Reference reference(keys, index, true);
  const Queries queries = make_queries(keys, 10 * group, {0, 3000}, 81);
  const SearchResult result = ask(index, queries, 3000, 1);
  std::int64_t compared = 0;
  for (std::int64_t q = 0; q < 10 * group; ++q) {
    bool sure = false;
    const auto looked_at = reference.survivors({queries.query(q)}, value_of(740), sure);
    if (!sure) continue;
    ++compared;
    std::set<std::int64_t> want;
    for (std::size_t c = 0; c < looked_at.size(); ++c) {
      if (looked_at[c]) want.insert(reference.members[c].begin(), reference.members[c].end());
    }
    EXPECT_EQ(rows_of(result, q), want);
  }
  EXPECT_GT(compared, 10);
}

TEST(Squeezed, QuestionsThatAreNotWholeAreRefused) {
  Heads heads({});
  const Queries queries = make_queries(heads.keys[0], 3 * group, {0, 3000}, 82);
  for (const std::int64_t tokens : {2, 0, -1, 4})
    EXPECT_THROW(ask(*heads.indices[0], queries, 10, tokens), InvalidArgument) << tokens;
  EXPECT_NO_THROW(ask(*heads.indices[0], queries, 10, 3));
}

TEST(Squeezed, QuestionsOfHostileTokensFindKRowsAllTheSame) {
  Heads heads({});
  Queries queries = make_queries(heads.keys[0], 3 * group, {100, 3000}, 83);
  for (std::int64_t i = 0; i < group * dim; ++i) queries.data[static_cast<std::size_t>(i)] = 1e38F;
  queries.allowed[0] = queries.allowed[1] = {50, 50};  // sees nothing
  const SearchResult result = ask(*heads.indices[0], queries, 25, 3);
  for (std::int64_t q = 0; q < 3 * group; ++q)
    EXPECT_EQ(std::ssize(result.positions(q)), q < group ? 0 : 25) << q;
}

TEST(Squeezed, FewerCoarseCentroidsThanFineOnes) {
  EXPECT_EQ(IndexSpec("squeezed:s=90,coarse=1").text(), "squeezed:c=5,coarse=1,s=90");
  EXPECT_TRUE(IndexSpec("squeezed:coarse=1").learns_queries());
  EXPECT_FALSE(IndexSpec("squeezed").learns_queries());
  for (const char* spec : {"squeezed:c=5,coarse=5", "squeezed:c=1,coarse=2"}) {
    try {
      IndexSpec{spec};
      FAIL() << spec;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("fewer coarse centroids"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace topkv
