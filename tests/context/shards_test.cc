// A context sharded by sequence: ranks that are given all queries and each its own part of K and V
// give, merged, what one rank with all of them gives.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <ostream>

#include "tests/support/stream.h"
#include "topkv/context.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::expect_step;
using test::Stream;
using test::tolerance;

struct ShardCase {
  const char* name;
  std::int64_t ranks;
  std::vector<std::int64_t> calls;  ///< tokens of each call of the prefill
  float softcap = 0;
  bool backwards = false;  ///< later tokens to earlier ranks, and more of them
};

void PrintTo(const ShardCase& c, std::ostream* out) { *out << c.name; }

class Shards : public testing::TestWithParam<ShardCase> {
 protected:
  /// The part of rank r in a call of `count` tokens: [first, first + tokens).
  static PositionRange part(std::int64_t rank, std::int64_t count) {
    const ShardCase& c = GetParam();
    const std::int64_t r = c.backwards ? c.ranks - 1 - rank : rank;
    return {count * r / c.ranks, count * (r + 1) / c.ranks};
  }

  /// The partial of tokens [begin, begin + count), over what each rank holds, merged.
  /// step_of(rank) tells which K and V a rank is given, and attend(rank, step) has it attend.
  template <class PartOf, class Attend>
  static Partial merged(const Stream& stream, std::int64_t layer, std::int64_t begin,
                        std::int64_t count, const PartOf& part_of, const Attend& attend) {
    const std::int64_t heads = count * stream.shape.q_heads;
    Partial all(heads, stream.shape.head_dim);
    for (std::int64_t rank = 0; rank < GetParam().ranks; ++rank) {
      std::vector<float> out(static_cast<std::size_t>(count * stream.q_width()), -7.0F);
      std::vector<float> lse(static_cast<std::size_t>(heads), -7.0F);
      AttentionStep step = stream.step(layer, begin, count, out.data(), lse.data());
      const PositionRange range = part_of(rank);
      step.kv_first = range.begin;
      step.kv_tokens = range.size();
      step.k = range.size() == 0 ? nullptr : step.k + range.begin * stream.kv_width();
      step.v = range.size() == 0 ? nullptr : step.v + range.begin * stream.kv_width();
      attend(rank, step);
      merge(all.view(), {out.data(), lse.data(), heads, stream.shape.head_dim});
    }
    return all;
  }
};

TEST_P(Shards, MergedEqualOneRank) {
  const ShardCase& c = GetParam();
  const AttentionShape shape{
      .layers = 2, .q_heads = 6, .kv_heads = 2, .head_dim = 16, .softcap = c.softcap};
  std::int64_t tokens = 0;
  for (const std::int64_t count : c.calls) tokens += count;
  const std::vector<std::int64_t> steps = {7, 1, 1, 1, 20, 1, 1};
  std::int64_t total = tokens;
  for (const std::int64_t count : steps) total += count;
  const Stream stream(shape, total);
  RetrievalOptions options{.k = TopK::same(100000), .window = 9, .sinks = 2};
  RetrievalOptions dense = options;  // with which expect_step checks that every row is seen
  dense.dense_layers = shape.layers;
  const auto check = [&](std::int64_t layer, std::int64_t begin, std::int64_t count,
                         const Partial& got, const float* out, const float* lse) {
    for (std::size_t i = 0; i < got.out().size(); ++i)
      ASSERT_NEAR(got.out()[i], out[i], tolerance)
          << "layer " << layer << ", tokens from " << begin;
    for (std::size_t i = 0; i < got.lse().size(); ++i)
      ASSERT_NEAR(got.lse()[i], lse[i], tolerance * (1 + std::abs(lse[i])));
    for (std::int64_t t = 0; t < count; t += std::max<std::int64_t>(1, count / 5)) {
      expect_step(stream, layer, begin + t, dense, got.out().data() + t * stream.q_width(),
                  got.lse().data() + t * shape.q_heads);
    }
  };
  std::vector<float> out(static_cast<std::size_t>(total * stream.q_width()));
  std::vector<float> lse(static_cast<std::size_t>(total * shape.q_heads));

  ContextBuilder whole(shape, {.capacity = tokens});
  std::vector<ContextBuilder> builders;
  for (std::int64_t rank = 0; rank < c.ranks; ++rank)
    builders.emplace_back(shape, ContextOptions{.capacity = tokens});
  std::int64_t begin = 0;
  for (const std::int64_t count : c.calls) {
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      whole.attend(stream.step(l, begin, count, out.data(), lse.data()));
      const Partial got = merged(
          stream, l, begin, count, [&](std::int64_t rank) { return part(rank, count); },
          [&](std::int64_t rank, const AttentionStep& step) { builders[rank].attend(step); });
      check(l, begin, count, got, out.data(), lse.data());
    }
    begin += count;
  }
  std::int64_t held = 0;
  for (const ContextBuilder& builder : builders) held += builder.tokens(1);
  EXPECT_EQ(held, tokens);

  // The last rank takes the tokens of the session; the others only read.
  Session session(whole.freeze(), options);
  std::vector<Session> sessions;
  for (ContextBuilder& builder : builders) sessions.emplace_back(builder.freeze(), options);
  for (const std::int64_t count : steps) {
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      session.attend(stream.step(l, begin, count, out.data(), lse.data()));
      const Partial got = merged(
          stream, l, begin, count,
          [&](std::int64_t rank) {
            return rank == c.ranks - 1 ? PositionRange{0, count} : PositionRange{0, 0};
          },
          [&](std::int64_t rank, const AttentionStep& step) { sessions[rank].attend(step); });
      check(l, begin, count, got, out.data(), lse.data());
    }
    begin += count;
  }
  EXPECT_EQ(sessions.back().own_tokens(), total - tokens);
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, Shards,
    testing::Values(ShardCase{"one", 1, {70, 1, 33}}, ShardCase{"two", 2, {70, 1, 2, 33}},
                    ShardCase{"three", 3, {70, 1, 2, 3, 1, 33}},
                    ShardCase{"three_that_begin_with_fewer_tokens_than_ranks", 3, {1, 1, 2, 1, 40}},
                    ShardCase{"three_of_which_two_hold_nothing", 3, {1}},
                    ShardCase{"two_with_capped_scores", 2, {70, 1, 2, 33}, 1.5F},
                    ShardCase{"three_backwards", 3, {64, 5, 1, 2, 30}, 0.7F, true}),
    [](const auto& info) { return info.param.name; });

TEST_P(Shards, EarlierRowsOfEveryPartAreSeenByAllTokens) {
  const ShardCase& c = GetParam();
  const AttentionShape shape{.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 16};
  const Stream stream(shape, 90);
  for (std::int64_t rank = 0; rank < c.ranks; ++rank) {
    ContextBuilder builder(shape, {.capacity = 90});
    std::vector<std::int64_t> mine;  // positions of the rows that the rank holds
    for (const std::int64_t begin : {0, 40, 65}) {
      const std::int64_t count = begin == 0 ? 40 : 25;
      const PositionRange range = part(rank, count);
      std::vector<float> out(static_cast<std::size_t>(count * stream.q_width()));
      std::vector<float> lse(static_cast<std::size_t>(count * 2));
      AttentionStep step = stream.step(0, begin, count, out.data(), lse.data());
      step.kv_first = range.begin;
      step.kv_tokens = range.size();
      step.k += range.begin * stream.kv_width();
      step.v += range.begin * stream.kv_width();
      builder.attend(step);
      for (std::int64_t x = range.begin; x < range.end; ++x) mine.push_back(begin + x);
      for (std::int64_t t = 0; t < count; ++t) {
        for (std::int64_t h = 0; h < 2; ++h) {
          const auto want = reference::attend(
              stream.rows(0, 0, 90), &stream.q[0][(begin + t) * stream.q_width() + h * 16],
              shape.softmax_scale(), [&](std::int64_t x) {
                return x <= begin + t && std::find(mine.begin(), mine.end(), x) != mine.end();
              });
          if (std::isinf(want.lse)) {
            ASSERT_EQ(lse[t * 2 + h], empty_lse);
          } else {
            ASSERT_NEAR(lse[t * 2 + h], want.lse, tolerance * (1 + std::abs(want.lse)));
          }
          for (std::int64_t j = 0; j < 16; ++j)
            ASSERT_NEAR(out[(t * 2 + h) * 16 + j], want.out[j], tolerance);
        }
      }
    }
    EXPECT_EQ(builder.tokens(0), static_cast<std::int64_t>(mine.size()));
  }
}

}  // namespace
}  // namespace topkv
