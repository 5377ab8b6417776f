// Many threads with many sessions over one context: each session gives the bits that it gives when
// nothing runs beside it.
#include <gtest/gtest.h>

#include <cstdint>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/stream.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::Stream;

const AttentionShape shared_shape{.layers = 2, .q_heads = 8, .kv_heads = 4, .head_dim = 16};
constexpr std::int64_t shared_tokens = 600;
constexpr std::int64_t threads = 16;  // more than there are lives, and than cores of most machines
constexpr std::int64_t sessions_each = 2;

using SharedOuts = std::vector<std::vector<float>>;

/// What a session of this number does: its own number of tokens, in steps of its own size, of which
/// some are taken back, some by a fork.
SharedOuts life(const Stream& stream, const std::shared_ptr<const Context>& context,
                const RetrievalOptions& options, std::int64_t number) {
  Session session(context, options);
  const std::int64_t kept = shared_tokens + 5 + number % 3;  // some have left the window
  stream.feed(session, kept + 1, 2 + number % 5);
  session.truncate(kept - shared_tokens);
  Session fork = session.fork();
  stream.feed(session, kept + 1, 1);
  return stream.feed(fork, kept + 2, 1 + number % 2);
}

using Methods = std::pair<std::string, std::string>;  // index and tail
class ManyThreads : public testing::TestWithParam<Methods> {};

TEST_P(ManyThreads, WithManySessionsGiveTheBitsOfOneThread) {
  const auto [index, tail] = GetParam();
  const Stream stream(shared_shape, shared_tokens + 16);
  auto context = stream.prefill(shared_tokens);
  if (index != "exact") context = context->with_index(index);
  if (!tail.empty()) context = context->with_index(tail);
  const RetrievalOptions options{
      .index = index, .k = TopK::same(8), .tail = tail, .window = 4, .sinks = 2, .capacity = 32};
  std::vector<SharedOuts> want;
  for (std::int64_t i = 0; i < 12; ++i) want.push_back(life(stream, context, options, i));
  ASSERT_NE(want[0], want[1]);

  std::vector<std::int64_t> wrong(threads, 0);
  {
    std::latch begin(threads);
    std::vector<std::jthread> running;
    for (std::int64_t t = 0; t < threads; ++t) {
      running.emplace_back([&, t] {
        begin.arrive_and_wait();
        for (std::int64_t i = 0; i < sessions_each; ++i) {
          const std::int64_t number = (t + i) % 12;
          const auto got = life(stream, context, options, number);
          wrong[static_cast<std::size_t>(t)] += got != want[static_cast<std::size_t>(number)];
        }
      });
    }
  }
  EXPECT_EQ(wrong, std::vector<std::int64_t>(threads, 0));
}

INSTANTIATE_TEST_SUITE_P(Indices, ManyThreads,
                         testing::Values(Methods{"exact", ""}, std::pair{"codes", ""},
                                         Methods{"quest:page=8", ""},
                                         Methods{"retroinfer:size=16", ""},
                                         Methods{"exact", "codes"}));

}  // namespace
}  // namespace topkv
