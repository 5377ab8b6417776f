// Every call of CUDA and cuBLAS that makes something fails in turn, then every call that does
// something, then every wait for the device: the library's call throws an Error, nothing is lost,
// what there was stays as it was, and the next call gives the same bits as if nothing had been. (A
// prefill whose rows were under way, or a session whose window was, may say instead that it is
// lost.)
#include "tests/gpu/failing/failing_calls.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/device/compute_device.h"
#include "tests/gpu/failing/fail_each.h"
#include "tests/support/session_feed.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/context.h"
#include "topkv/error.h"
#include "topkv/model.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::Call;
using test::Calls;
using test::fail_each;
using test::Feed;
using test::is_well;
using test::open_session;
using test::Place;
using test::take_steps;
using test::TokenStream;

TEST(FailingCalls, OfADevice) {
  TOPKV_NEEDS_GPU();
  const auto attempt = [](const Call& call) {
    Device device;
    while (call([&] { device = Device::open("cuda", test::device_ceiling); }))
      ASSERT_FALSE(device.is_cuda());
    ASSERT_TRUE(device.is_cuda());
  };
  EXPECT_GT(fail_each(Calls::any, attempt), 5);
  EXPECT_GE(fail_each(Calls::waits, attempt), 1);
}

TEST(FailingCalls, ARecordingThatFailsLeavesTheDeviceUsable) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  const Buffer values = place.put({1, 2, 3, 4});
  ComputeDevice& compute = place.compute();
  std::unique_ptr<Recording> recording;
  {
    const auto lock = compute.lock();
    compute.replay(recording, [&] { compute.scale(2, 4, values.floats()); });
    float none = 0;
    // Waiting is no work that can be recorded.
    EXPECT_THROW(compute.replay(recording,
                                [&] {
                                  compute.scale(2, 4, values.floats());
                                  compute.copy_out(values.data(), 4, &none);
                                }),
                 Error);
    compute.scale(3, 4, values.floats());
    compute.replay(recording, [&] { compute.scale(2, 4, values.floats()); });
    compute.replay(recording, [&] { compute.scale(2, 4, values.floats()); });
  }
  EXPECT_EQ(place.get(values.floats(), 4), (std::vector<float>{24, 48, 72, 96}));
}

AttentionShape stack() { return {.layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 64}; }

class FailingCallsOf : public testing::TestWithParam<const char*> {};

TEST_P(FailingCallsOf, APrefillAndItsIndex) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  constexpr std::int64_t tokens = 200;
  const TokenStream stream(stack(), tokens);
  Feed feed(place, stream, 0, tokens);
  std::vector<std::vector<float>> want;
  std::int64_t lost = 0;
  const auto attempt = [&](const Call& call) {
    std::shared_ptr<const Context> context;
    while (context == nullptr) {
      std::unique_ptr<ContextBuilder> builder;
      const ContextOptions options{.capacity = tokens, .keep_queries = true};
      while (call(
          [&] { builder = std::make_unique<ContextBuilder>(stack(), options, place.device()); })) {
      }
      // Whether it was done, once or again; false: rows are lost, and the builder says so.
      const auto done = [&](std::int64_t layer, std::int64_t begin, const auto& work) {
        while (call(work)) {
          if (!is_well([&] { builder->capacity(); })) return false;
          EXPECT_EQ(builder->tokens(layer), begin);
        }
        return true;
      };
      bool whole = true;
      for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{120}}) {
        const std::int64_t count = begin == 0 ? 120 : 80;
        whole = whole && done(0, begin, [&] { builder->reserve(tokens, count); });
        for (std::int64_t l = 0; l < 3 && whole; ++l)
          whole = done(l, begin, [&] { builder->attend(feed.step(l, begin, count)); });
      }
      whole = whole && done(0, tokens, [&] { context = builder->freeze(); });
      if (!whole) ++lost;
    }
    std::shared_ptr<const Context> indexed;
    while (call([&] { indexed = context->with_index(GetParam(), {}, place.device()); }))
      ASSERT_EQ(indexed, nullptr);
    if (want.empty()) want = feed.outs();
    ASSERT_EQ(feed.outs(), want);
  };
  EXPECT_GT(fail_each(Calls::making, attempt), 3);
  EXPECT_GT(fail_each(Calls::any, attempt, 16), 5);
  EXPECT_EQ(lost, 0) << "what was given ended well";
  EXPECT_GT(fail_each(Calls::waits, attempt, 16), 2);
}

// Steps, and the end of a prefill, that fail and are repeated are counted once.
TEST(FailingCalls, OfASparsePrefillLeaveItsShares) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  constexpr std::int64_t tokens = 900;
  constexpr std::int64_t count = 300;
  const TokenStream stream(stack(), tokens);
  Feed feed(place, stream, 0, tokens);
  ContextOptions options{.capacity = tokens};
  options.attention = {
      .mode = Prefill::sparse, .window = 64, .sinks = 4, .keys = 128, .least_keys = 0};
  std::vector<std::vector<float>> want;
  std::vector<PrefillShare> wanted;
  const auto attempt = [&](const Call& call) {
    std::unique_ptr<ContextBuilder> builder;
    while (call(
        [&] { builder = std::make_unique<ContextBuilder>(stack(), options, place.device()); })) {
    }
    for (std::int64_t begin = 0; begin < tokens; begin += count) {
      for (std::int64_t l = 0; l < 3; ++l) {
        while (call([&] { builder->attend(feed.step(l, begin, count)); }))
          ASSERT_EQ(builder->tokens(l), begin);
      }
    }
    while (call([&] { builder->truncate(tokens); })) {  // closes the device's prefill
    }
    std::vector<PrefillShare> shares(3);
    for (std::int64_t l = 0; l < 3; ++l)
      while (call([&] { shares[static_cast<std::size_t>(l)] = builder->share(l); })) {
      }
    if (want.empty()) {
      want = feed.outs();
      wanted = shares;
    }
    ASSERT_EQ(feed.outs(), want);
    for (std::size_t l = 0; l < 3; ++l) {
      ASSERT_EQ(shares[l].queries, tokens * 2);
      ASSERT_LT(shares[l].keys, shares[l].dense_keys);
      ASSERT_EQ(shares[l].keys, wanted[l].keys);
      ASSERT_EQ(shares[l].dense_keys, wanted[l].dense_keys);
      ASSERT_NEAR(shares[l].mass, wanted[l].mass, 1e-6 * wanted[l].mass);  // a sum in any order
    }
  };
  EXPECT_GT(fail_each(Calls::making, attempt), 3);
  EXPECT_GT(fail_each(Calls::any, attempt), 100);
}

/// A session's life, each part again where it fails; made anew where it can not be.
TEST_P(FailingCallsOf, ASession) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  constexpr std::int64_t first = 300;
  constexpr std::int64_t total = first + 8;
  const TokenStream stream(stack(), total);
  const RetrievalOptions options{
      .index = GetParam(), .k = TopK::same(8), .window = 16, .sinks = 4, .capacity = 16};
  const auto rows = stream.context(first);
  Feed feed(place, stream, first, total);
  std::vector<std::vector<float>> want;
  for (const Calls calls : {Calls::making, Calls::any, Calls::waits}) {
    std::int64_t lost = 0;
    const auto attempt = [&](const Call& call) {
      // With what a device keeps of an index, which is made for the first session.
      const auto context = rows->with_index(GetParam());
      std::unique_ptr<Session> session = open_session(call, context, options, place.device());
      while (!take_steps(call, *session, feed, {3, 1, 1, 1, 2})) {
        ++lost;
        session.reset();
        session = open_session(call, context, options, place.device());
      }
      std::unique_ptr<Session> fork;
      while (call([&] { fork = std::make_unique<Session>(session->fork()); })) {
      }
      ASSERT_EQ(fork->own_tokens(), total - first);
      const auto got = feed.outs();
      if (want.empty()) want = got;
      ASSERT_EQ(got, want);
    };
    EXPECT_GT(fail_each(calls, attempt, calls == Calls::making ? 1'000'000 : 24), 5);
    RecordProperty("sessions_lost", std::to_string(lost));
  }
}

INSTANTIATE_TEST_SUITE_P(Index, FailingCallsOf,
                         testing::Values("exact", "codes", "codes:v=0", "quest:page=4", "sparq:r=8",
                                         "retroinfer:size=4", "squeezed"));

/// Turns between steps. The prefill of a turn comes and goes, and the window gets its rows.
TEST(FailingCalls, OfASessionThatReadsTurns) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  constexpr std::int64_t first = 300;
  constexpr std::int64_t total = first + 523;
  const TokenStream stream(stack(), total);
  for (const Prefill mode : {Prefill::dense, Prefill::sparse}) {
    const RetrievalOptions options{
        .index = "exact",
        .k = TopK::same(8),
        .window = 16,
        .sinks = 4,
        .turns = PrefillAttention{.mode = mode, .window = 64, .keys = 128, .least_keys = 0},
        .capacity = 600};
    const auto context = stream.context(first)->with_index("exact");
    Feed feed(place, stream, first, total);
    std::vector<std::vector<float>> want;
    for (const Calls calls : {Calls::making, Calls::any, Calls::waits}) {
      std::int64_t lost = 0;
      const auto attempt = [&](const Call& call) {
        std::unique_ptr<Session> session = open_session(call, context, options, place.device());
        while (!take_steps(call, *session, feed, {3, 256, 1, 262, 1})) {
          ++lost;
          session.reset();
          session = open_session(call, context, options, place.device());
        }
        const auto got = feed.outs();
        if (want.empty()) want = got;
        ASSERT_EQ(got, want);
      };
      EXPECT_GT(fail_each(calls, attempt, calls == Calls::making ? 1'000'000 : 24), 5);
      RecordProperty("sessions_lost", std::to_string(lost));
    }
  }
}

/// What they have together stays whole, whichever of them fails.
TEST(FailingCalls, OfASessionBesideAnother) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  constexpr std::int64_t first = 300;
  constexpr std::int64_t total = first + 24;
  const TokenStream stream(stack(), total);
  for (const char* index : {"exact", "codes"}) {
    const RetrievalOptions options{
        .index = index, .k = TopK::same(8), .window = 16, .sinks = 4, .capacity = 32};
    const auto rows = stream.context(first);
    Feed of_one(place, stream, first, total);
    Feed of_other(place, stream, first, total);
    std::vector<std::vector<float>> want_of_one;
    std::vector<std::vector<float>> want_of_other;
    for (const Calls calls : {Calls::making, Calls::any, Calls::waits}) {
      const auto attempt = [&](const Call& call) {
        const auto context = rows->with_index(index);
        const auto open = [&] { return open_session(call, context, options, place.device()); };
        std::unique_ptr<Session> one = open();
        while (!take_steps(call, *one, of_one, {1, 2})) {
          one.reset();
          one = open();
        }
        std::unique_ptr<Session> other = open();
        // The last step needs room for more rows.
        while (!take_steps(call, *other, of_other, {3, 1, 20})) {
          other.reset();
          other = open();
        }
        bool whole = take_steps(call, *one, of_one, {1, 20});
        while (!whole) {
          one.reset();
          one = open();
          whole = take_steps(call, *one, of_one, {1, 2, 1, 20});
        }
        other.reset();
        const auto got_of_one = of_one.outs();
        const auto got_of_other = of_other.outs();
        if (want_of_one.empty()) want_of_one = got_of_one;
        if (want_of_other.empty()) want_of_other = got_of_other;
        ASSERT_EQ(got_of_one, want_of_one);
        ASSERT_EQ(got_of_other, want_of_other);
      };
      EXPECT_GT(fail_each(calls, attempt, calls == Calls::making ? 1'000'000 : 24), 5);
    }
  }
}

TEST(FailingCalls, OfAModel) {
  TOPKV_NEEDS_GPU();
  const Place place("cuda");
  TempDirectory folder;
  folder.write("model.safetensors", file_of(random_tensors(Sizes{})));
  folder.write("config.json", config_of(Sizes{}).dump());
  const std::vector<Token> text = some_tokens(40, Sizes{}.vocab);
  std::vector<float> want;
  const auto attempt = [&](const Call& call) {
    std::unique_ptr<Model> model;
    while (
        call([&] { model = std::make_unique<Model>(Model::load(folder.path(), place.device())); }))
      ASSERT_EQ(model, nullptr);
    std::shared_ptr<const Context> context;
    while (call([&] { context = model->prefill(text, {.indices = {"codes"}}); }))
      ASSERT_EQ(context, nullptr);
    const RetrievalOptions options{
        .index = "codes", .k = TopK::same(4), .window = 4, .capacity = 64};
    std::unique_ptr<Session> session = open_session(call, context, options, place.device());
    std::vector<float> logits;
    for (std::size_t i = 0; i < 4;) {
      // One by one, so that the network's work is recorded and replayed.
      std::vector<float> got;
      const auto feed = [&] {
        got = model->logits(*session, std::vector<Token>{text[i]});
        session->stats();  // tells what a step that goes ahead met after its call
      };
      if (!call(feed)) {
        logits.insert(logits.end(), got.begin(), got.end());
        ++i;
      } else if (!is_well([&] { session->truncate(static_cast<std::int64_t>(i)); })) {
        session.reset();
        session = open_session(call, context, options, place.device());
        logits.clear();
        i = 0;
      }
    }
    if (want.empty()) want = logits;
    ASSERT_EQ(logits, want);
  };
  EXPECT_GT(fail_each(Calls::making, attempt), 10);
  EXPECT_GT(fail_each(Calls::any, attempt, 10), 100);
  EXPECT_GT(fail_each(Calls::waits, attempt, 10), 10);
}

}  // namespace
}  // namespace topkv
