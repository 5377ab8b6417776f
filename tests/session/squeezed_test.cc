// Steps of sessions over a context with squeezed: one of several tokens is a question. (What the
// index finds for one is held against float64 by squeezed_test.cc; here, what a session makes of
// it.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "tests/support/reference.h"
#include "tests/support/stream.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::prefilled;
using test::Stream;

/// A context of 1200 tokens, and a session's options over it.
struct Asked {
  explicit Asked(std::int64_t total)
      : stream({.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 16}, total),
        context(prefilled(stream, 1200, 400)->with_index(spec)) {}

  static constexpr const char* spec = "squeezed:c=5,coarse=1,s=80";
  const RetrievalOptions options{
      .index = spec, .k = TopK::same(2000), .window = 20, .sinks = 2, .capacity = 400};
  Stream stream;
  std::shared_ptr<const Context> context;
};

TEST(SqueezedSessions, AStepOfSeveralTokensIsAQuestion) {
  const Asked asked(1228);
  const Stream& stream = asked.stream;
  Session session(asked.context, asked.options);
  const auto outs = stream.feed(session, 1228, 7);
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    for (const std::int64_t first : {1200, 1221}) {
      for (std::int64_t head = 0; head < 2; ++head) {
        std::vector<float> queries;
        std::vector<PositionRange> allowed;
        for (std::int64_t p = first; p < first + 7; ++p) {
          const float* q = &stream.q[static_cast<std::size_t>(layer)]
                                    [static_cast<std::size_t>(p * stream.q_width() + head * 32)];
          queries.insert(queries.end(), q, q + 32);
          allowed.insert(allowed.end(), 2, {2, std::min<std::int64_t>(p - 19, 1200)});
        }
        SearchResult found;
        asked.context->index(Asked::spec, layer, head)
            .search({.data = queries.data(),
                     .count = 14,
                     .dim = 16,
                     .allowed = allowed,
                     .group = 2,
                     .tokens = 7},
                    2000, found);
        for (std::int64_t q = 0; q < 14; ++q) {
          const std::int64_t p = first + q / 2;
          const auto positions = found.positions(q);
          const std::set<std::int64_t> rows(positions.begin(), positions.end());
          const auto want = reference::attend(
              stream.rows(layer, head, p + 1), &queries[static_cast<std::size_t>(q * 16)], 0.25,
              [&](std::int64_t row) {
                return row < 2 || row > p - 20 || row >= 1200 || rows.contains(row);
              });
          for (std::int64_t j = 0; j < 16; ++j) {
            ASSERT_NEAR(outs[static_cast<std::size_t>(layer)][static_cast<std::size_t>(
                            (p - 1200) * stream.q_width() + (head * 2 + q % 2) * 16 + j)],
                        want.out[static_cast<std::size_t>(j)], test::tolerance)
                << p;
          }
        }
      }
    }
  }
  Session one(asked.context, asked.options);
  EXPECT_GT(reference::distance(stream.feed(one, 1228, 1), outs), 1e-3);  // each token its own rows
}

TEST(SqueezedSessions, AQuestionOfMoreTokensThanAStepHoldsIsAskedInParts) {
  const Asked asked(1500);
  Session whole(asked.context, asked.options);
  const auto outs = asked.stream.feed(whole, 1500, 300);
  Session parts(asked.context, asked.options);
  auto want = asked.stream.feed(parts, 1456, 256);
  const auto rest = asked.stream.feed(parts, 1500, 44);
  for (std::size_t layer = 0; layer < 2; ++layer)
    want[layer].insert(want[layer].end(), rest[layer].begin(), rest[layer].end());
  EXPECT_EQ(outs, want);
}

TEST(SqueezedSessions, TogetherTheyAskTheirOwnQuestions) {
  const Asked asked(1240);
  const Stream& stream = asked.stream;
  const std::int64_t width = stream.q_width();
  for (const std::int64_t tokens : {1, 5}) {
    Session a(asked.context, asked.options);
    Session b(asked.context, asked.options);
    Session* both[] = {&a, &b};
    // The second is given the tokens that follow the first's.
    std::vector<std::vector<float>> have;
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      have.emplace_back(static_cast<std::size_t>(2 * tokens * width));
      AttentionStep step = stream.step(layer, 1200, tokens, have.back().data());
      Session::attend_together(both, step);
    }
    for (std::int64_t s = 0; s < 2; ++s) {
      Session alone(asked.context, asked.options);
      for (std::int64_t layer = 0; layer < 2; ++layer) {
        std::vector<float> want(static_cast<std::size_t>(tokens * width));
        alone.attend(stream.step(layer, 1200 + s * tokens, tokens, want.data()));
        const auto* from = have[static_cast<std::size_t>(layer)].data() + s * tokens * width;
        EXPECT_TRUE(std::equal(want.begin(), want.end(), from)) << tokens << " " << s;
      }
    }
  }
}

}  // namespace
}  // namespace topkv
