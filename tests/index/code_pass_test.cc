// The host's pass over codes, against float64: rows that score best are listed, what is estimated
// is the attention over all others, and no key is in two places or in none.
#include "index/codes/code_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "src/core/threads/threads.h"
#include "tests/index/coded_rows.h"
#include "tests/support/reference.h"

namespace topkv {
namespace {

using test::Coded;
using test::expected;
using test::Tail;

constexpr std::int64_t pass_group = 3;

/// What a pass gives for some tokens.
struct Passed {
  Passed(const Coded& coded, const CodePass& pass, const std::vector<float>& queries,
         const std::vector<PositionRange>& allowed, bool together = true)
      : tokens(std::ssize(allowed)),
        listed(allowed.size()),
        estimate(tokens * pass_group, coded.dim),
        exact(tokens * pass_group, coded.dim),
        noise(static_cast<std::size_t>(tokens * pass_group)) {
    std::vector<PassToken> of;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto at = static_cast<std::size_t>(t);
      of.push_back(
          {queries.data() + t * pass_group * coded.dim,
           allowed[at],
           &listed[at],
           {estimate.view().part(t * pass_group, pass_group),
            exact.view().part(t * pass_group, pass_group), noise.data() + t * pass_group}});
    }
    if (together) {
      pass.run(of);
    } else {
      for (const PassToken& token : of) pass.run({&token, 1});
    }
  }

  std::int64_t tokens;
  std::vector<std::vector<std::int64_t>> listed;
  Partial estimate, exact;
  std::vector<TailNoise> noise;
};

CodePass pass_over(const Coded& coded, std::int64_t wanted, float softcap = 0) {
  return {.index = coded.index.get(),
          .tail = coded.tail.get(),
          .rows = coded.rows,
          .group = pass_group,
          .wanted = wanted,
          .scale = 1 / std::sqrt(static_cast<float>(coded.dim)),
          .softcap = softcap};
}

/// Scores of keys as their codes stand for them, -inf for rare ones and those out of range.
std::vector<double> code_scores(const Coded& coded, const reference::Rows& rows, const float* q,
                                PositionRange allowed) {
  std::vector<double> scores(static_cast<std::size_t>(coded.count), -1e300);
  for (std::int64_t r = allowed.begin; r < std::min(allowed.end, coded.count); ++r) {
    if (!coded.is_rare(r)) scores[static_cast<std::size_t>(r)] = reference::score(rows, q, r);
  }
  return scores;
}

TEST(CodePass, ListsTheBestOfAllCodesAndEstimatesTheOthers) {
  for (const std::int64_t dim : {7, 64, 128, 256}) {
    const Coded coded(3001, dim);  // few enough for each to be in the sample
    const reference::Rows rows = coded.decoded();
    const std::vector<PositionRange> allowed = {{0, coded.count}, {5, 2924}, {1300, 1311}};
    const auto queries = reference::random_floats(3 * pass_group * dim, 7, 1.0F);
    for (const float softcap : {0.0F, 3.0F}) {
      const CodePass pass = pass_over(coded, 20, softcap);
      const Passed got(coded, pass, queries, allowed);
      for (std::int64_t t = 0; t < got.tokens; ++t) {
        const auto at = static_cast<std::size_t>(t);
        const std::vector<std::int64_t>& listed = got.listed[at];
        EXPECT_TRUE(std::is_sorted(listed.begin(), listed.end()));
        const std::set<std::int64_t> taken(listed.begin(), listed.end());
        ASSERT_EQ(taken.size(), listed.size()) << "no row twice";
        for (const std::int64_t r : listed) {
          EXPECT_TRUE(allowed[at].contains(r) && !coded.is_rare(r)) << r;
        }
        std::set<std::int64_t> best;  // of any head
        for (std::int64_t g = 0; g < pass_group; ++g) {
          const float* q = queries.data() + (t * pass_group + g) * dim;
          SlotWeights weights;
          coded.index->coder().weigh_slots(q, weights);
          const double rounding =
              3 * static_cast<double>(coded.index->coder().bytes()) * weights.step;
          const auto scores = code_scores(coded, rows, q, allowed[at]);
          auto sorted = scores;
          std::sort(sorted.rbegin(), sorted.rend());
          const double last = sorted[19];
          for (std::int64_t r = 0; r < coded.count; ++r) {
            const double score = scores[static_cast<std::size_t>(r)];
            EXPECT_TRUE(score <= last + 2 * rounding || taken.contains(r)) << r;
            if (score >= last - 2 * rounding) best.insert(r);
          }
          // The tail is of all that were not listed, whose codes score no more than the last.
          const double scale = pass.scale;
          const double variance =
              softcap > 0
                  ? 0.0
                  : scale * scale * static_cast<double>(coded.index->coder().error_variance(q));
          std::set<std::int64_t> not_in_tail = taken;
          for (const std::int64_t r : coded.index->rare()) not_in_tail.insert(r);
          double ceiling = scale * last;
          if (softcap > 0) ceiling = softcap * std::tanh(ceiling / softcap);
          const float lse = got.estimate.lse()[static_cast<std::size_t>(t * pass_group + g)];
          if (t == 2) {  // fewer than are wanted
            EXPECT_EQ(lse, empty_lse);
            continue;
          }
          const Tail want =
              expected(coded, rows, q, scale, softcap, variance, ceiling, allowed[at], not_in_tail);
          EXPECT_NEAR(lse, want.lse, 2 * scale * rounding + 2e-3) << dim << " head " << g;
        }
        for (const std::int64_t r : listed) EXPECT_TRUE(best.contains(r)) << r;
        // Rare rows, as they are.
        std::vector<std::int64_t> rare;
        for (const std::int64_t r : coded.index->rare()) {
          if (allowed[at].contains(r)) rare.push_back(r);
        }
        Partial want(pass_group, dim);
        attend_rows(queries.data() + t * pass_group * dim, coded.rows, rare, pass.scale,
                    want.view(), softcap);
        for (std::int64_t g = 0; g < pass_group; ++g) {
          const float lse = got.exact.lse()[static_cast<std::size_t>(t * pass_group + g)];
          if (rare.empty()) {
            EXPECT_EQ(lse, empty_lse);
          } else {
            EXPECT_NEAR(lse, want.lse()[static_cast<std::size_t>(g)], 1e-4);
          }
        }
      }
    }
  }
}

TEST(CodePass, ListsAboutAsManyOfALongContext) {
  const Coded coded(150000, 16);
  const auto queries = reference::random_floats(pass_group * 16, 5, 1.0F);
  const PositionRange all{0, coded.count};
  for (const std::int64_t wanted : {1, 16, 256, 2048}) {
    CodePass pass = pass_over(coded, wanted);
    pass.group = 1;  // each head alone
    for (std::int64_t g = 0; g < pass_group; ++g) {
      std::vector<std::int64_t> listed;
      Partial estimate(1, 16);
      Partial exact(1, 16);
      TailNoise noise;
      const PassToken token{
          queries.data() + g * 16, all, &listed, {estimate.view(), exact.view(), &noise}};
      pass.run({&token, 1});
      // A sample of an eighth of the keys tells the rank to its square root.
      const auto w = static_cast<double>(wanted);
      EXPECT_LT(std::ssize(listed), 1.5 * w + 8 * std::sqrt(w)) << wanted;
      EXPECT_GT(std::ssize(listed), w / 2 - 4 * std::sqrt(w)) << wanted;
    }
  }
}

TEST(CodePass, EveryKeyIsListedOrRareWhereAllAreWanted) {
  const Coded coded(70000, 32);
  const auto queries = reference::random_floats(pass_group * 32, 5, 1.0F);
  const PositionRange some{77, 69001};
  const Passed got(coded, pass_over(coded, 1 << 20), queries, {some});
  std::size_t next = 0;
  for (std::int64_t r = some.begin; r < some.end; ++r) {
    if (coded.is_rare(r)) continue;
    ASSERT_LT(next, got.listed[0].size());
    ASSERT_EQ(got.listed[0][next++], r);
  }
  EXPECT_EQ(next, got.listed[0].size());
  for (const float lse : got.estimate.lse()) EXPECT_EQ(lse, empty_lse);
}

TEST(CodePass, KeysThatScoreAlikeAreListedAndNotLost) {
  // A text that repeats one key: as many as the best as are wanted there cannot be told apart.
  Coded coded(4000, 16);  // few enough for each to be in the sample
  std::copy_n(coded.keys.begin(), 16 * 300, coded.keys.begin() + 16 * 1000);
  for (std::int64_t i = 0; i < 300; ++i)
    std::copy_n(coded.keys.begin(), 16, coded.keys.begin() + 16 * (1000 + i));
  auto index = std::make_unique<CodesIndex>(CodesParams{16, 0});
  index->add(coded.rows.keys, {});
  index->build({});
  std::vector<float> query(coded.keys.begin(), coded.keys.begin() + 16);
  CodePass pass = pass_over(coded, 10);
  pass.index = index.get();
  pass.tail = nullptr;
  pass.group = 1;
  std::vector<std::int64_t> listed;
  Partial exact(1, 16);
  const PassToken token{query.data(), {0, 4000}, &listed, {{}, exact.view(), nullptr}};
  pass.run({&token, 1});
  EXPECT_GE(std::ssize(listed), 10);
}

TEST(CodePass, ARangeHasASampleOfItsOwn) {
  const Coded coded(150000, 16);
  const auto queries = reference::random_floats(pass_group * 16, 5, 1.0F);
  CodePass pass = pass_over(coded, 20);
  pass.group = 1;
  for (const std::int64_t begin : {3000, 70001, 148000}) {
    std::vector<std::int64_t> listed;
    Partial estimate(1, 16);
    Partial exact(1, 16);
    TailNoise noise;
    const PassToken token{
        queries.data(), {begin, begin + 2000}, &listed, {estimate.view(), exact.view(), &noise}};
    pass.run({&token, 1});
    EXPECT_GE(std::ssize(listed), 20);
    EXPECT_LE(std::ssize(listed), 25);  // of a range of so few all are scored
  }
}

TEST(CodePass, TokensTogetherGiveWhatEachGivesAlone) {
  const Coded coded(9000, 64);
  const std::int64_t tokens = 7;
  const auto queries = reference::random_floats(tokens * pass_group * 64, 5, 1.0F);
  std::vector<PositionRange> allowed;
  for (std::int64_t t = 0; t < tokens; ++t) allowed.push_back({t % 3 * 700, 8000 + 103 * t});
  for (const float softcap : {0.0F, 2.0F}) {
    const CodePass pass = pass_over(coded, 30, softcap);
    const Passed all(coded, pass, queries, allowed);
    const Passed each(coded, pass, queries, allowed, false);
    EXPECT_EQ(all.listed, each.listed);
    const auto same = [](const Partial& a, const Partial& b) {
      EXPECT_TRUE(std::ranges::equal(a.lse(), b.lse()));
      EXPECT_TRUE(std::ranges::equal(a.out(), b.out()));
    };
    same(all.estimate, each.estimate);
    same(all.exact, each.exact);
  }
}

}  // namespace
}  // namespace topkv
