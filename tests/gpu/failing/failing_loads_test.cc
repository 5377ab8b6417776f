// Sessions over a context out of a file, in memory or mapped, while calls of CUDA fail in turn: as
// for contexts that a device prefilled (failing_calls_test.cc).
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/gpu/failing/fail_each.h"
#include "tests/gpu/failing/failing_calls.h"
#include "tests/support/session_feed.h"
#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::Call;
using test::Calls;
using test::fail_each;
using test::Feed;
using test::open_session;
using test::Place;
using test::take_steps;
using test::TokenStream;

/// Mapped or in memory; an index.
class FailingLoads : public testing::TestWithParam<std::tuple<bool, const char*>> {};

/// A session's rows go on in another one, as `resume` has it: refused, that one is as it was.
TEST_P(FailingLoads, AContextItsSessionAndTheOneThatGoesOn) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  constexpr std::int64_t first = 300;
  constexpr std::int64_t total = first + 7;
  const AttentionShape shape{.layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 64};
  const TokenStream stream(shape, total);
  const auto [mapped, index] = GetParam();
  const RetrievalOptions options{
      .index = index, .k = TopK::same(8), .window = 16, .sinks = 4, .capacity = 16};
  const TempDirectory folder;
  const std::filesystem::path file = folder.path() / "c.tkv";
  save_context(*stream.context(first)->with_index(options.index), file);
  Feed feed(place, stream, first, total);
  std::vector<std::vector<float>> want;
  const auto attempt = [&, in_file = mapped](const Call& call) {
    std::shared_ptr<const Context> context;
    while (call([&] {
      context = load_context(file, {.mapped = in_file, .device = place.device()}).context;
    })) {
      ASSERT_EQ(context, nullptr);
    }
    std::unique_ptr<Session> session = open_session(call, context, options, place.device());
    while (!take_steps(call, *session, feed, {3, 1, 1})) {
      session.reset();
      session = open_session(call, context, options, place.device());
    }
    std::shared_ptr<const Context> own;
    while (call([&] { own = session->own_rows(); })) ASSERT_EQ(own, nullptr);
    std::unique_ptr<Session> later;
    do {
      later.reset();
      later = open_session(call, context, options, place.device());
      while (call([&] { later->resume(*own); })) ASSERT_EQ(later->own_tokens(), 0);
    } while (!take_steps(call, *later, feed, {1, 1}));
    ASSERT_EQ(later->tokens(), total);
    const auto got = feed.outs();
    if (want.empty()) want = got;
    ASSERT_EQ(got, want);
  };
  for (const Calls calls : {Calls::making, Calls::any, Calls::waits})
    EXPECT_GT(fail_each(calls, attempt, calls == Calls::making ? 1'000'000 : 16), 5);
}

INSTANTIATE_TEST_SUITE_P(Load, FailingLoads,
                         testing::Combine(testing::Bool(),
                                          testing::Values("exact", "codes", "quest:page=4")));

/// Codes of rows that are page-locked are the device's to make.
TEST(FailingLoad, CodesOfItsRows) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const AttentionShape shape{.layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 64};
  const TempDirectory folder;
  save_context(*TokenStream(shape, 300).context(300), folder.path() / "rows.tkv");
  const auto bytes_of = [](const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  for (const Calls calls : {Calls::making, Calls::any, Calls::waits}) {
    std::string want;
    const auto attempt = [&](const Call& call) {
      const auto rows = load_context(folder.path() / "rows.tkv", {.device = place.device()});
      std::shared_ptr<const Context> indexed;
      while (call([&] { indexed = rows.context->with_index("codes", {}, place.device()); }))
        ASSERT_EQ(indexed, nullptr);
      save_context(*indexed, folder.path() / "codes.tkv");
      const std::string got = bytes_of(folder.path() / "codes.tkv");
      if (want.empty()) want = got;
      // Without memory for making them there the host does, whose roundings are its own.
      ASSERT_EQ(got.size(), want.size());
      ASSERT_TRUE(got == want || calls != Calls::waits);
    };
    EXPECT_GT(fail_each(calls, attempt, 16), 2);
  }
}

}  // namespace
}  // namespace topkv
