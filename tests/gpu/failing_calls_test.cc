// Every call of CUDA and cuBLAS that makes something fails in turn, then every call that does
// something: the library's call throws an Error, nothing is lost, what there was stays as it was,
// and the next call gives the same bits as if nothing had been. (Waits for the device do not fail
// here: what they stand for would go on beside what follows.)
#include "tests/gpu/failing_calls.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/device/compute_device.h"
#include "tests/gpu/session_feed.h"
#include "tests/small_llama.h"
#include "tests/temp_directory.h"
#include "topkv/context.h"
#include "topkv/error.h"
#include "topkv/model.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using test::Calls;
using test::device_things;
using test::FailingCall;
using test::Feed;
using test::Place;
using test::TokenStream;

/// A part of an attempt that may fail; gives whether it did.
using Call = std::function<bool(const std::function<void()>&)>;

/// Has each of these calls that attempt(call) makes within its call()s fail in turn, the n-th, then
/// that after n + n / stride, until none is left; gives how many there were. REQUIRES: what an
/// attempt made is gone when it returns. (Where the device has no memory for making codes or
/// clusters, the host makes them: not every failure is told.)
std::int64_t fail_each(Calls calls, const std::function<void(const Call&)>& attempt,
                       std::int64_t stride = 1'000'000) {
  const auto reaches = [&](std::int64_t n) {
    std::int64_t left = n;
    int failures = 0;
    attempt([&](const std::function<void()>& work) {
      const std::int64_t before = left;
      bool failed = false;
      {
        const FailingCall failing(calls, before);
        try {
          work();
        } catch (const Error& error) {
          // A step that goes ahead may tell after its call has returned, once more when it is
          // taken back; what throws without a failure is no part of this test.
          if (n < 0 || FailingCall::left() >= 0 || ++failures > 2) throw;
          failed = true;
          EXPECT_GT(std::strlen(error.what()), 20U);
        }
        left = FailingCall::left();
      }
      return failed;
    });
    return n >= 0 && left < 0;
  };
  for (int warm = 0; warm < 2; ++warm) reaches(-1);  // what a device keeps from the first time
  const std::int64_t before = device_things();
  for (std::int64_t n = 0;; n += 1 + n / stride) {
    const bool reached = reaches(n);
    EXPECT_EQ(device_things(), before)
        << "lost when " << FailingCall::name() << ", number " << n << ", failed";
    if (!reached) return n;
    if (testing::Test::HasFailure()) {
      ADD_FAILURE() << "when " << FailingCall::name() << ", number " << n << ", failed";
      return n;
    }
  }
}

TEST(FailingCalls, OfADevice) {
  TOPKV_NEEDS_GPU();
  {
    const std::int64_t places = fail_each(Calls::any, [](const Call& call) {
      Device device;
      while (call([&] { device = Device::open("cuda", test::device_ceiling); }))
        ASSERT_FALSE(device.is_cuda());
      ASSERT_TRUE(device.is_cuda());
    });
    EXPECT_GT(places, 5);
  }
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
  const auto attempt = [&](const Call& call) {
    std::unique_ptr<ContextBuilder> builder;
    const ContextOptions options{.capacity = tokens, .keep_queries = true};
    while (call(
        [&] { builder = std::make_unique<ContextBuilder>(stack(), options, place.device()); })) {
    }
    for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{120}}) {
      const std::int64_t count = begin == 0 ? 120 : 80;
      while (call([&] { builder->reserve(tokens, count); })) ASSERT_EQ(builder->tokens(0), begin);
      for (std::int64_t l = 0; l < 3; ++l) {
        while (call([&] { builder->attend(feed.step(l, begin, count)); }))
          ASSERT_EQ(builder->tokens(l), begin);
      }
    }
    std::shared_ptr<const Context> context;
    while (call([&] { context = builder->freeze(); })) ASSERT_EQ(context, nullptr);
    std::shared_ptr<const Context> indexed;
    while (call([&] { indexed = context->with_index(GetParam(), {}, place.device()); }))
      ASSERT_EQ(indexed, nullptr);
    if (want.empty()) want = feed.outs();
    ASSERT_EQ(feed.outs(), want);
  };
  EXPECT_GT(fail_each(Calls::making, attempt), 3);
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
  for (const Calls calls : {Calls::making, Calls::any}) {
    std::int64_t lost = 0;
    const auto attempt = [&](const Call& call) {
      // With what a device keeps of an index, which is made for the first session.
      const auto context = rows->with_index(GetParam());
      std::unique_ptr<Session> session;
      const auto open = [&] {
        session.reset();
        while (
            call([&] { session = std::make_unique<Session>(context, options, place.device()); })) {
        }
      };
      open();
      const std::vector<std::int64_t> steps = {3, 1, 1, 1, 2};
      for (std::size_t i = 0; i < steps.size();) {
        const std::int64_t at = session->tokens();
        bool again = false;
        for (std::int64_t l = 0; l < 3 && !again; ++l) {
          while (call([&] { feed.attend(*session, l, at, steps[i]); })) {
            try {
              session->truncate(at - first);
            } catch (const Error&) {  // it says that it is lost
              ++lost;
              open();
              i = 0;
            }
            again = true;
            break;
          }
        }
        if (again) continue;
        // What a step that goes ahead met after its call is told here at the latest.
        try {
          session->stats();
          ++i;
        } catch (const Error&) {
          ++lost;
          open();
          i = 0;
        }
      }
      std::unique_ptr<Session> fork;
      while (call([&] { fork = std::make_unique<Session>(session->fork()); })) {
      }
      ASSERT_EQ(fork->own_tokens(), total - first);
      const auto got = feed.outs();
      if (want.empty()) want = got;
      ASSERT_EQ(got, want);
    };
    EXPECT_GT(fail_each(calls, attempt, calls == Calls::any ? 24 : 1'000'000), 5);
    RecordProperty("sessions_lost", std::to_string(lost));
  }
}

INSTANTIATE_TEST_SUITE_P(Index, FailingCallsOf,
                         testing::Values("exact", "codes", "codes:v=0", "quest:page=4", "sparq:r=8",
                                         "retroinfer:size=4", "squeezed"));

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
    std::unique_ptr<Session> session;
    const RetrievalOptions options{
        .index = "codes", .k = TopK::same(4), .window = 4, .capacity = 64};
    const auto open = [&] {
      session.reset();
      while (call([&] { session = std::make_unique<Session>(context, options, place.device()); })) {
      }
    };
    open();
    std::vector<float> logits;
    for (std::size_t i = 0; i < 4;) {
      // One by one, so that the network's work is recorded and replayed.
      std::vector<float> got;
      const auto feed = [&] {
        got = model->logits(*session, std::vector<Token>{text[i]});
        session->stats();  // tells what a step that goes ahead met after its call
      };
      if (call(feed)) {
        if (session->own_tokens() == static_cast<std::int64_t>(i)) continue;
        open();
        logits.clear();
        i = 0;
        continue;
      }
      logits.insert(logits.end(), got.begin(), got.end());
      ++i;
    }
    if (want.empty()) want = logits;
    ASSERT_EQ(logits, want);
  };
  EXPECT_GT(fail_each(Calls::making, attempt), 10);
  EXPECT_GT(fail_each(Calls::any, attempt, 10), 100);
}

}  // namespace
}  // namespace topkv
