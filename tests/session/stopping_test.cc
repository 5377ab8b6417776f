// Work that is told to stop: who learns of it, how often long work asks, and what it leaves.
#include "src/core/threads/stopping.h"

#include <gtest/gtest.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>

#include <atomic>
#include <cstdint>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/core/threads/run_with_progress.h"
#include "src/core/threads/threads.h"
#include "tests/support/stream.h"
#include "topkv/context.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

/// While one lives, counts how often work asks whether to stop, and requests it at the n-th time
/// (0: never), or cancels the task group that the work is part of.
class StopsAt {
 public:
  explicit StopsAt(std::int64_t n, oneapi::tbb::task_group_context* of = nullptr)
      : token_(source.get_token()), scope_(&token_) {
    at = n;
    group = of;
    asked = 0;
    fault_hook = [](const char* place) {
      if (std::string_view(place) != "stop" || ++asked != at) return;
      if (group != nullptr)
        group->cancel_group_execution();
      else
        source.request_stop();
    };
  }
  ~StopsAt() {
    fault_hook = nullptr;
    source = {};
  }
  StopsAt(const StopsAt&) = delete;  // belongs to one scope
  StopsAt& operator=(const StopsAt&) = delete;

  static inline std::stop_source source;
  static inline std::atomic<std::int64_t> asked{0};
  static inline std::int64_t at = 0;
  static inline oneapi::tbb::task_group_context* group = nullptr;

 private:
  std::stop_token token_;
  StopScope scope_;
};

struct Enough {};

const Model& bundled() {
  static const Model model = Model::load(TOPKV_SOURCE_DIR "/models/needle-14m");
  return model;
}

std::vector<Token> tokens(std::int64_t count) {
  std::vector<Token> all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(static_cast<Token>(10 + i * 7 % 200));
  return all;
}

TEST(Stopping, WorkThatNobodyWatchesIsNotStopped) {
  EXPECT_NO_THROW(check_stop());
  EXPECT_EQ(current_stop, nullptr);
}

TEST(Stopping, TheBodiesOfALoopAreStoppedByWhatStopsTheirCaller) {
  std::stop_source source;
  const std::stop_token token = source.get_token();
  const StopScope scope(&token);
  std::atomic<int> through = 0;
  const auto loop = [&] {
    parallel_for(64, 1, [&](std::int64_t, std::int64_t) {
      parallel_for(64, 1, [&](std::int64_t, std::int64_t) { check_stop(); });
      ++through;
    });
  };
  loop();
  EXPECT_GT(through, 0);
  source.request_stop();
  through = 0;
  EXPECT_THROW(loop(), Stopped);
  EXPECT_EQ(through, 0);
}

TEST(Stopping, AScopeEndsWithItsBlock) {
  std::stop_source source;
  source.request_stop();
  const std::stop_token token = source.get_token();
  {
    const StopScope scope(&token);
    EXPECT_THROW(check_stop(), Stopped);
    const StopScope none(nullptr);
    EXPECT_NO_THROW(check_stop());
  }
  EXPECT_NO_THROW(check_stop());
}

TEST(Stopping, WatchedWorkLearnsOfItWhereverItIs) {
  std::atomic<bool> learned = false;
  EXPECT_THROW(run_watched(
                   [&](const std::stop_token&) {
                     parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
                       try {
                         for (;;) check_stop();
                       } catch (const Stopped&) {
                         learned = true;
                         throw;
                       }
                     });
                   },
                   [] { throw Enough(); }),
               Enough);
  EXPECT_TRUE(learned);
}

// So that it ends within a second at any length, the more rows there are, the more often it asks.
TEST(Stopping, DensePrefillAsksTheMoreOftenTheMoreRowsThereAre) {
  const test::Stream stream({.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 16}, 4096, 1);
  ContextBuilder builder(stream.shape, {.capacity = stream.total});
  std::vector<float> out(static_cast<std::size_t>(256 * stream.q_width()));
  std::vector<std::int64_t> asked;
  for (std::int64_t begin = 0; begin < stream.total; begin += 256) {
    const StopsAt never(0);
    builder.attend(stream.step(0, begin, 256, out.data()));
    asked.push_back(StopsAt::asked);
  }
  // At least once for each 256 rows.
  for (std::size_t chunk = 0; chunk < asked.size(); ++chunk)
    EXPECT_GT(asked[chunk], static_cast<std::int64_t>(chunk)) << chunk;
}

/// A builder with the first half of a stream's tokens.
class HalfPrefilled {
 public:
  HalfPrefilled() { attend(builder_, 0); }

  void attend_rest() { attend(builder_, half); }

  /// The second half is still to come, and gives what it gives one that nothing has befallen.
  void expect_untouched() {
    attend_rest();
    const std::vector<float> got = out_;
    ContextBuilder other(stream_.shape, {.capacity = stream_.total});
    attend(other, 0);
    attend(other, half);
    EXPECT_EQ(got, out_);
  }

  std::int64_t tokens() const { return builder_.tokens(0); }

 private:
  static constexpr std::int64_t half = 1024;

  void attend(ContextBuilder& to, std::int64_t begin) {
    to.attend(stream_.step(0, begin, half, out_.data()));
  }

  const test::Stream stream_{
      {.layers = 1, .q_heads = 2, .kv_heads = 1, .head_dim = 16}, 2 * half, 1};
  std::vector<float> out_ = std::vector<float>(static_cast<std::size_t>(half * stream_.q_width()));
  ContextBuilder builder_{stream_.shape, {.capacity = stream_.total}};
};

TEST(Stopping, AStepOfAPrefillThatIsStoppedLeavesTheLayerAsItWas) {
  HalfPrefilled prefill;
  for (const std::int64_t n : {1, 2, 7}) {
    const StopsAt stops(n);
    EXPECT_THROW(prefill.attend_rest(), Stopped);
    EXPECT_EQ(prefill.tokens(), 1024);
  }
  prefill.expect_untouched();
}

#ifndef TOPKV_STD_THREADS  // of oneTBB's cancellation
// As when the application's own loop, in whose body the step is taken, ends by an exception.
TEST(Stopping, AStepWhoseTaskGroupIsCancelledLeavesTheLayerAsItWas) {
  HalfPrefilled prefill;
  for (const std::int64_t n : {0, 1, 2, 7}) {
    oneapi::tbb::task_group_context group;
    const StopsAt stops(n, &group);
    oneapi::tbb::parallel_for(
        0, 1,
        [&](int) {
          if (n == 0) group.cancel_group_execution();
          EXPECT_THROW(prefill.attend_rest(), Stopped) << n;
        },
        group);
    EXPECT_EQ(prefill.tokens(), 1024);
  }
  prefill.expect_untouched();
}
#endif

TEST(Stopping, AModelAsksInEachLayer) {
  const std::int64_t layers = bundled().config().attention.layers;
  for (std::int64_t n = 1; n <= 2 * layers; ++n) {
    const StopsAt stops(n);
    EXPECT_THROW(bundled().prefill(tokens(300)), Stopped) << n;
  }
  const StopsAt never(0);
  bundled().prefill(tokens(300));
  EXPECT_GT(StopsAt::asked, 2 * layers);
}

/// What is told while tokens are read, without what is told again: the same until more is.
class Told {
 public:
  ProgressFn callback() {
    return [this](const Progress& progress) {
      EXPECT_EQ(progress.unit, "tokens");
      stages.emplace_back(progress.stage);
      total = progress.total;
      if (progress.done > 0 && (done.empty() || done.back() != progress.done))
        done.push_back(progress.done);
    };
  }

  std::vector<std::string> stages;
  std::vector<std::int64_t> done;
  std::int64_t total = 0;
};

TEST(Prompt, IsToldOfWhileItIsRead) {
  const auto context = bundled().prefill(tokens(64));
  Session session(context);
  Told told;
  bundled().generate(session, tokens(600), {.max_tokens = 3, .progress = told.callback()});
  EXPECT_EQ(told.done, (std::vector<std::int64_t>{256, 512, 600}));
  EXPECT_EQ(told.total, 600);
  for (const std::string& stage : told.stages) EXPECT_EQ(stage, "prompt");
}

TEST(Prompt, OfSeveralSessionsIsToldOfAsOne) {
  const auto context = bundled().prefill(tokens(64));
  Session a(context);
  Session b(context);
  Session* const both[] = {&a, &b};
  const std::vector<std::vector<Token>> prompts = {tokens(300), tokens(100)};
  Told told;
  bundled().generate_together(both, prompts, {.max_tokens = 3, .progress = told.callback()});
  EXPECT_EQ(told.done, (std::vector<std::int64_t>{256, 300, 400}));
  EXPECT_EQ(told.total, 400);
}

TEST(Prompt, ThatIsWatchedGivesWhatItGivesAlone) {
  const auto context = bundled().prefill(tokens(64));
  std::vector<Token> answers[2];
  for (const bool watched : {false, true}) {
    Session session(context);
    GenerateOptions options{.max_tokens = 8};
    if (watched) options.progress = [](const Progress&) {};
    answers[watched ? 1 : 0] = bundled().generate(session, tokens(600), options).tokens;
  }
  EXPECT_EQ(answers[0], answers[1]);
}

// What a session has asked of the threads of an arena is not left there.
TEST(Prompt, ThatIsWatchedEndsOnOneThreadToo) {
  const oneapi::tbb::global_control one(oneapi::tbb::global_control::max_allowed_parallelism, 1);
  const auto context = bundled().prefill(tokens(900))->with_index("codes:k=32,v=8");
  Session session(context, {.index = "codes:k=32,v=8", .k = TopK::same(16), .window = 64});
  const GenerateOptions watched{.max_tokens = 3, .progress = [](const Progress&) {}};
  for (int turn = 0; turn < 3; ++turn)
    EXPECT_EQ(bundled().generate(session, tokens(20), watched).tokens.size(), 3U);
  const GenerateOptions stopped{.max_tokens = 3,
                                .progress = [](const Progress&) { throw Enough(); }};
  EXPECT_THROW(bundled().generate(session, tokens(300), stopped), Enough);
  EXPECT_EQ(bundled().generate(session, tokens(20), {.max_tokens = 3}).tokens.size(), 3U);
}

TEST(Prompt, WhoseProgressThrowsLeavesTheSessionsAsTheyWere) {
  const auto context = bundled().prefill(tokens(64));
  Session a(context);
  Session b(context);
  bundled().generate(a, tokens(10), {.max_tokens = 2});
  const std::int64_t own = a.own_tokens();
  const GenerateOptions options{.max_tokens = 3, .progress = [](const Progress& progress) {
                                  if (progress.done >= 512) throw Enough();
                                }};
  EXPECT_THROW(bundled().generate(a, tokens(600), options), Enough);
  EXPECT_EQ(a.own_tokens(), own);
  Session* const both[] = {&a, &b};
  const std::vector<std::vector<Token>> prompts = {tokens(300), tokens(300)};
  EXPECT_THROW(bundled().generate_together(both, prompts, options), Enough);
  EXPECT_EQ(a.own_tokens(), own);
  EXPECT_EQ(b.own_tokens(), 0);
  Session fresh(context);
  EXPECT_EQ(bundled().generate(b, tokens(20), {.max_tokens = 4}).tokens,
            bundled().generate(fresh, tokens(20), {.max_tokens = 4}).tokens);
}

TEST(Prompt, ThatIsStoppedAnywhereLeavesTheSessionAsItWas) {
  for (const char* index : {"exact", "codes:k=32,v=8"}) {
    const auto context = bundled().prefill(tokens(1500))->with_index(index);
    const RetrievalOptions retrieval = {.index = index, .k = TopK::same(16), .window = 64};
    Session session(context, retrieval);
    Session other(context, retrieval);
    std::int64_t asked = 0;
    {
      const StopsAt never(0);
      Session all(context, retrieval);
      bundled().generate(all, tokens(300), {.max_tokens = 0});
      asked = StopsAt::asked;
    }
    ASSERT_GT(asked, 100);
    for (std::int64_t n = 1; n < asked / 2; n = 2 * n + 1) {
      const StopsAt stops(n);
      EXPECT_THROW(bundled().generate(session, tokens(300), {.max_tokens = 0}), Stopped) << n;
      EXPECT_EQ(session.own_tokens(), 0);
    }
    EXPECT_EQ(bundled().generate(session, tokens(30), {.max_tokens = 4}).tokens,
              bundled().generate(other, tokens(30), {.max_tokens = 4}).tokens);
  }
}

TEST(Prefill, IsToldOfEachChunkAndDiscardedWhenProgressThrows) {
  Told told;
  bundled().prefill(tokens(500), {.chunk = 200}, told.callback());
  EXPECT_EQ(told.done, (std::vector<std::int64_t>{200, 400, 500}));
  EXPECT_THROW(
      bundled().prefill(tokens(500), {.chunk = 200}, [](const Progress&) { throw Enough(); }),
      Enough);
}

}  // namespace
}  // namespace topkv
