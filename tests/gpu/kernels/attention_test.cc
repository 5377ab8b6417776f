// gpu/attention/attention.h against attention in float64, over shapes at the edges of its tiles.
#include "gpu/attention/attention.h"

#include <gtest/gtest.h>

#include "tests/gpu/kernels/attention_case.h"
#include "tests/support/needs_gpu.h"
#include "topkv/error.h"

namespace {

using test::AttentionCase;
using test::Shape;
using topkv::gpu::Into;

struct Heads {
  std::int64_t dim;
  bool are_values;  // keys are values
};

constexpr Heads all_heads[] = {{64, false},  {80, false},  {96, false}, {128, false},
                               {256, false}, {512, false}, {64, true},  {576, true}};
// One of each way in which a kernel's tiles lie in memory.
constexpr Heads some_heads[] = {{64, false}, {80, false}, {256, false}, {512, false}, {576, true}};

void expect_dense(const Shape& shape) {
  SCOPED_TRACE(testing::Message() << "head_dim " << shape.head_dim << ", keys are values "
                                  << shape.keys_are_values << ", group " << shape.group
                                  << ", tokens " << shape.tokens << ", rows " << shape.rows);
  AttentionCase problem(shape);
  problem.attend(0, shape.rows, Into::overwrite);
  problem.expect_close(problem.answer());
}

TEST(GpuAttention, AllRowsAgreeWithFloat64ForEveryHeadDim) {
  TOPKV_NEEDS_GPU();
  for (const auto& [head_dim, are_values] : all_heads) {
    for (const std::int64_t tokens : {1, 2, 17, 130})
      expect_dense(
          {.head_dim = head_dim, .keys_are_values = are_values, .tokens = tokens, .rows = 200});
  }
}

TEST(GpuAttention, GroupsOfAnySizeAgreeWithFloat64) {
  TOPKV_NEEDS_GPU();
  for (const auto& [head_dim, are_values] : {Heads{128, false}, {512, false}, {576, true}}) {
    for (const std::int64_t group : {1, 3, 7, 16, 20}) {
      for (const std::int64_t tokens : {1, 2, 17}) {
        expect_dense({.head_dim = head_dim,
                      .keys_are_values = are_values,
                      .group = group,
                      .tokens = tokens,
                      .rows = 130});
      }
    }
  }
}

// Latent attention: all heads of a token share the KV head, so that its rows are many tiles, of
// which each splits the keys over blocks. 8 tokens of 128 heads are the last that do so.
TEST(GpuAttention, LatentHeadsThatShareOneKvHeadAgreeWithFloat64) {
  TOPKV_NEEDS_GPU();
  const auto expect = [](std::int64_t heads, std::int64_t tokens, std::int64_t rows,
                         std::int64_t window = 0) {
    const Shape shape{.head_dim = 576,
                      .keys_are_values = true,
                      .kv_heads = 1,
                      .group = heads,
                      .tokens = tokens,
                      .rows = rows,
                      .first_token = std::max<std::int64_t>(rows - tokens, 0),
                      .visible = {.causal = true, .window = window, .sinks = window > 0 ? 4 : 0}};
    SCOPED_TRACE(testing::Message() << heads << " heads, " << tokens << " tokens, " << rows
                                    << " rows, window " << window);
    AttentionCase problem(shape);
    problem.attend(0, rows, Into::overwrite);
    problem.expect_close(problem.answer());
    problem.attend(rows / 3, rows, Into::overwrite);
    problem.attend(0, rows / 3, Into::merge);
    problem.expect_close(problem.answer());
  };
  for (const std::int64_t heads : {16, 20, 65}) {
    for (const std::int64_t rows : {1, 33, 64, 65, 127, 257}) expect(heads, 1, rows);
  }
  expect(16, 1, 3001);
  expect(64, 1, 600);
  expect(128, 1, 520);
  for (const std::int64_t window : {0, 30}) {
    expect(20, 7, 70, window);
    expect(128, 3, 70, window);
    expect(128, 8, 70, window);
    expect(128, 9, 70, window);
  }
}

TEST(GpuAttention, CountsAtTheEdgesOfTilesAgreeWithFloat64) {
  TOPKV_NEEDS_GPU();
  for (const auto& [head_dim, are_values] : all_heads) {
    for (const std::int64_t rows : {1, 15, 16, 31, 32, 33, 63, 64, 65, 127, 129, 1000}) {
      expect_dense({.head_dim = head_dim,
                    .keys_are_values = are_values,
                    .kv_heads = 1,
                    .group = 4,
                    .tokens = 1,
                    .rows = rows});
      expect_dense({.head_dim = head_dim,
                    .keys_are_values = are_values,
                    .kv_heads = 1,
                    .group = 1,
                    .tokens = 70,
                    .rows = rows});
    }
  }
}

TEST(GpuAttention, NoRowsGiveTheEmptyPartialAndMergeAsNothing) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t tokens : {1, 130}) {
    const Shape shape{.tokens = tokens, .rows = 65};
    AttentionCase problem(shape);
    problem.attend(0, 0, Into::overwrite);
    const test::Answer empty = problem.answer();
    for (const float x : empty.out) ASSERT_EQ(x, 0.0F);
    for (const float x : empty.lse) ASSERT_EQ(x, -std::numeric_limits<float>::infinity());
    problem.attend(0, shape.rows, Into::merge);
    problem.attend(0, 0, Into::merge);
    problem.expect_close(problem.answer());
  }
}

TEST(GpuAttention, CausalTokensSeeTheirPastWhereverTheRowsBegin) {
  TOPKV_NEEDS_GPU();
  constexpr std::int64_t far = std::int64_t{5} << 32;  // positions need 64 bits
  for (const auto& [head_dim, are_values] : some_heads) {
    for (const std::int64_t tokens : {1, 20, 130}) {
      for (const std::int64_t first : {std::int64_t{0}, std::int64_t{77}, far}) {
        for (const std::int64_t row :
             {std::int64_t{0}, first, std::max<std::int64_t>(first - 40, 0), first + 10}) {
          const Shape shape{.head_dim = head_dim,
                            .keys_are_values = are_values,
                            .kv_heads = 1,
                            .tokens = tokens,
                            .rows = 150,
                            .first_token = first,
                            .first_row = row,
                            .visible = {.causal = true}};
          SCOPED_TRACE(testing::Message()
                       << "tokens " << tokens << " at " << first << ", rows at " << row);
          AttentionCase problem(shape);
          problem.attend(0, shape.rows, Into::overwrite);
          problem.expect_close(problem.answer());
        }
      }
    }
  }
}

TEST(GpuAttention, WindowAndSinksAreSeenAndNothingBetween) {
  TOPKV_NEEDS_GPU();
  for (const auto& [head_dim, are_values] : some_heads) {
    for (const std::int64_t tokens : {1, 40, 100}) {
      for (const std::int64_t window : {1, 30, 64, 1000}) {
        for (const std::int64_t sinks : {0, 4, 70}) {
          const Shape shape{.head_dim = head_dim,
                            .keys_are_values = are_values,
                            .kv_heads = 1,
                            .tokens = tokens,
                            .rows = 300,
                            .first_token = 300 - tokens,
                            .visible = {.causal = true, .window = window, .sinks = sinks}};
          SCOPED_TRACE(testing::Message()
                       << "tokens " << tokens << ", window " << window << ", sinks " << sinks);
          AttentionCase problem(shape);
          problem.attend(0, shape.rows, Into::overwrite);
          problem.expect_close(problem.answer());
        }
      }
    }
  }
}

TEST(GpuAttention, RowsOfARingAreFoundWhereverTheyWrap) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t first_row : {0, 1, 190, 255, 1000}) {
    for (const std::int64_t rows : {5, 65, 256}) {
      for (const std::int64_t tokens : {1, 30}) {
        const Shape shape{.head_dim = 128,
                          .tokens = tokens,
                          .rows = rows,
                          .first_token = first_row + rows - std::min(rows, tokens),
                          .first_row = first_row,
                          .ring = 256,
                          .visible = {.causal = true, .window = 100, .sinks = 4}};
        SCOPED_TRACE(testing::Message() << rows << " rows from " << first_row);
        AttentionCase problem(shape);
        problem.attend(0, shape.rows, Into::overwrite);
        problem.expect_close(problem.answer());
      }
    }
  }
}

TEST(GpuAttention, RowsInTwoPlacesGiveTheBitsOfRowsInOne) {
  TOPKV_NEEDS_GPU();
  constexpr std::int64_t rows = 300;
  for (const auto& [head_dim, are_values] : all_heads) {
    for (const std::int64_t tokens : {1, 30, 150}) {
      Shape shape{.head_dim = head_dim,
                  .keys_are_values = are_values,
                  .tokens = tokens,
                  .rows = rows,
                  .first_token = rows - tokens,
                  .visible = {.causal = true, .window = 100, .sinks = 4}};
      AttentionCase one(shape);
      one.attend(0, rows, Into::overwrite);
      const test::Answer want = one.answer();
      one.attend(10, rows, Into::overwrite);
      const test::Answer want_later = one.answer();
      for (const std::int64_t split : {1, 63, 64, 65, 200, 299}) {
        SCOPED_TRACE(testing::Message()
                     << "head_dim " << head_dim << ", tokens " << tokens << ", split at " << split);
        shape.split = split;
        AttentionCase two(shape);
        two.attend(0, rows, Into::overwrite);
        const test::Answer got = two.answer();
        EXPECT_EQ(got.out, want.out);
        EXPECT_EQ(got.lse, want.lse);
        two.attend(10, rows, Into::overwrite);
        EXPECT_EQ(two.answer().out, want_later.out);
      }
    }
  }
}

TEST(GpuAttention, PartialsOverPiecesMergeIntoTheWholeInAnyOrder) {
  TOPKV_NEEDS_GPU();
  const std::int64_t pieces[][3][2] = {{{0, 100}, {100, 101}, {101, 400}},
                                       {{101, 400}, {0, 100}, {100, 101}},
                                       {{100, 101}, {101, 400}, {0, 100}}};
  for (const auto& [head_dim, are_values] : all_heads) {
    for (const std::int64_t tokens : {1, 130}) {
      // Some tokens see nothing of some pieces.
      const Shape shape{.head_dim = head_dim,
                        .keys_are_values = are_values,
                        .tokens = tokens,
                        .rows = 400,
                        .first_token = 60,
                        .visible = {.causal = true}};
      AttentionCase problem(shape);
      for (const auto& order : pieces) {
        Into into = Into::overwrite;
        for (const auto& [begin, end] : order) {
          problem.attend(begin, end, into);
          into = Into::merge;
        }
        problem.expect_close(problem.answer());
      }
    }
  }
}

TEST(GpuAttention, LargeScoresNeitherOverflowNorLoseTheirLse) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t tokens : {1, 130}) {
    // Scores of about 20 standard deviation, so up to 80 and beyond.
    const Shape shape{.head_dim = 128, .tokens = tokens, .rows = 500, .key_size = 20.0F};
    AttentionCase problem(shape);
    problem.attend(0, shape.rows, Into::overwrite);
    problem.expect_close(problem.answer());
  }
}

TEST(GpuAttention, SoftCappedScoresAgreeWithFloat64ForEveryHeadDim) {
  TOPKV_NEEDS_GPU();
  struct Scores {
    float size, softcap;  // scaled scores have this standard deviation before they are capped
  };
  // Hardly bent, bent, mostly at the cap; and so large that e^(2x) overflows, and vanishes.
  for (const Scores& scores : {Scores{1, 50}, Scores{20, 30}, Scores{20, 2}, Scores{1e30F, 3}}) {
    for (const auto& [head_dim, are_values] : all_heads) {
      for (const std::int64_t tokens : {1, 70}) {
        for (const std::int64_t rows : {1, 65, 200}) {
          const Shape shape{.head_dim = head_dim,
                            .keys_are_values = are_values,
                            .kv_heads = 1,
                            .tokens = tokens,
                            .rows = rows,
                            .key_size = scores.size,
                            .softcap = scores.softcap};
          SCOPED_TRACE(testing::Message()
                       << "softcap " << scores.softcap << ", scores of " << scores.size
                       << ", head_dim " << head_dim << ", tokens " << tokens << ", rows " << rows);
          AttentionCase problem(shape);
          problem.attend(0, rows, Into::overwrite);
          problem.expect_close(problem.answer());
        }
      }
    }
  }
}

// A row that is not seen has no score, not one of -softcap.
TEST(GpuAttention, SoftCappedScoresLeaveUnseenRowsUnseenAndPartialsMerge) {
  TOPKV_NEEDS_GPU();
  for (const std::int64_t tokens : {1, 40, 150}) {
    for (const std::int64_t window : {0, 30}) {
      const Shape shape{.head_dim = 128,
                        .tokens = tokens,
                        .rows = 400,
                        .first_token = 380 - tokens,
                        .visible = {.causal = true, .window = window, .sinks = 4},
                        .key_size = 4.0F,
                        .softcap = 1.5F};
      SCOPED_TRACE(testing::Message() << "tokens " << tokens << ", window " << window);
      AttentionCase problem(shape);
      problem.attend(0, 400, Into::overwrite);
      problem.expect_close(problem.answer());
      problem.attend(100, 333, Into::overwrite);
      problem.attend(0, 100, Into::merge);
      problem.attend(333, 400, Into::merge);
      problem.expect_close(problem.answer());
    }
  }
}

TEST(GpuAttention, RefusesWhatItCannotCompute) {
  TOPKV_NEEDS_GPU();
  AttentionCase problem({.rows = 10});
  auto heads = problem.layer_heads();
  auto queries = problem.queries();
  const auto attend = [&] {
    topkv::gpu::attend(heads, queries, problem.rows(0, 10), {}, problem.partial(), Into::overwrite,
                       nullptr);
  };
  for (const std::int64_t dim : {72, 576}) {
    heads.head_dim = queries.head_dim = dim;
    EXPECT_FALSE(topkv::gpu::attention_supports(dim, false));
    EXPECT_THROW(attend(), topkv::Unsupported) << dim;
  }
  EXPECT_TRUE(topkv::gpu::attention_supports(576, true));
  heads = problem.layer_heads();
  EXPECT_THROW(attend(), topkv::InvalidArgument);  // queries of another width
  queries = problem.queries();
  heads.scale = -1;
  EXPECT_THROW(attend(), topkv::InvalidArgument);
  heads = problem.layer_heads();
  auto rows = problem.rows(0, 10);
  rows.split = -1;
  EXPECT_THROW(
      topkv::gpu::attend(heads, queries, rows, {}, problem.partial(), Into::overwrite, nullptr),
      topkv::InvalidArgument);
  for (const float softcap : {-1.0F, NAN, INFINITY, 1e-40F}) {
    heads.softcap = softcap;
    EXPECT_THROW(attend(), topkv::InvalidArgument) << softcap;
  }
}

}  // namespace
