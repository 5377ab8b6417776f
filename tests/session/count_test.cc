// Thousands of sessions over one context: side by side, each with its own tokens, and one after the
// other, leaving neither memory, descriptors, threads nor mappings behind.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/stream.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::Stream;

const AttentionShape counted_shape{.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 16};
constexpr std::int64_t counted_tokens = 64;

std::int64_t entries(const char* folder) {
  std::int64_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

/// What a process holds: bytes that malloc has given and not got back, descriptors, threads, and
/// pieces of address space.
struct Held {
  std::int64_t heap = 0, files = 0, threads = 0, mappings = 0;

  static Held now() {
    const struct mallinfo2 of = mallinfo2();
    Held held{.heap = static_cast<std::int64_t>(of.uordblks) + static_cast<std::int64_t>(of.hblkhd),
              .files = entries("/proc/self/fd"),
              .threads = entries("/proc/self/task")};
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) ++held.mappings;
    return held;
  }
};

TEST(Sessions, TenThousandOneAfterTheOtherLeaveNothingBehind) {
  const Stream stream(counted_shape, counted_tokens + 4);
  const auto context = stream.prefill(counted_tokens)->with_index("codes:k=8,v=4");
  std::vector<std::vector<float>> want;
  const auto open = [&](std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      Session session(context, {.index = i % 2 == 0 ? "exact" : "codes:k=8,v=4",
                                .k = TopK::same(4),
                                .tail = "none",
                                .window = 2,
                                .sinks = 1});
      const auto outs = stream.feed(session, counted_tokens + 4, 4);
      if (i < 2) want = outs;
    }
  };
  open(200);  // what threads and the process keep is there now
  // malloc counts what its caches of threads keep, some 200 KiB for each, as given: these fill at
  // some time, once. What sessions leave behind comes with every round.
  constexpr std::int64_t round = 3400;
  Held least{.heap = INT64_MAX, .files = INT64_MAX, .threads = INT64_MAX, .mappings = INT64_MAX};
  for (int i = 0; i < 3; ++i) {
    const Held before = Held::now();
    open(round);
    const Held after = Held::now();
    least = {.heap = std::min(least.heap, after.heap - before.heap),
             .files = std::min(least.files, after.files - before.files),
             .threads = std::min(least.threads, after.threads - before.threads),
             .mappings = std::min(least.mappings, after.mappings - before.mappings)};
  }
  EXPECT_FALSE(want.empty());
  EXPECT_LT(least.heap, 16 * round);  // malloc gives 32 bytes or more
  EXPECT_LE(least.files, 0);
  EXPECT_LE(least.threads, 0);
  EXPECT_LT(least.mappings, 20);
}

TEST(Sessions, ThousandsSideBySideKeepTheirTokensApartAndGiveAllBack) {
  constexpr std::int64_t count = 3000;
  constexpr std::int64_t kinds = 7;  // sessions of a kind are given the same tokens, as many
  const std::int64_t total = counted_tokens + kinds + 4;
  const auto context = Stream(counted_shape, total).prefill(counted_tokens);
  const RetrievalOptions options{.k = TopK::same(4), .window = 4, .sinks = 1};
  std::vector<Stream> streams;
  std::vector<std::vector<std::vector<float>>> want;
  for (std::int64_t i = 0; i < kinds; ++i) {
    streams.emplace_back(counted_shape, total, static_cast<unsigned>(100 * i + 7));
    Session alone(context, options);
    streams.back().feed(alone, counted_tokens + i, 1);
    want.push_back(streams.back().feed(alone, total, 2));
  }
  // Twice: a thread that works for the first time keeps what it needs.
  Held least{.heap = INT64_MAX, .mappings = INT64_MAX};
  for (int round = 0; round < 2; ++round) {
    const Held before = Held::now();
    {
      std::vector<Session> sessions;
      sessions.reserve(count);
      for (std::int64_t i = 0; i < count; ++i) sessions.emplace_back(context, options);
      const Held open = Held::now();
      EXPECT_LT((open.heap - before.heap) / count, 16 * 1024);
      EXPECT_EQ(open.files, before.files);
      EXPECT_LE(open.threads, before.threads);
      EXPECT_LE(open.mappings - before.mappings, 2 * count + 20);
      for (std::int64_t i = 0; i < count; ++i)
        streams[static_cast<std::size_t>(i % kinds)].feed(sessions[static_cast<std::size_t>(i)],
                                                          counted_tokens + i % kinds, 1);
      for (std::int64_t i = count; i-- > 0;) {
        Session& session = sessions[static_cast<std::size_t>(i)];
        const auto kind = static_cast<std::size_t>(i % kinds);
        ASSERT_EQ(session.own_tokens(), i % kinds);
        ASSERT_EQ(streams[kind].feed(session, total, 2), want[kind]) << i;
      }
    }
    const Held after = Held::now();
    least.heap = std::min(least.heap, after.heap - before.heap);
    least.mappings = std::min(least.mappings, after.mappings - before.mappings);
  }
  EXPECT_LT(least.heap, 256 * 1024);
  EXPECT_LT(least.mappings, 20);
}

}  // namespace
}  // namespace topkv
