// A device that is lost: from some call of CUDA on, each one fails, waits among them. That is told
// by an Error, by whatever is asked of it then, too; what reads the host's memory goes on; and all
// can be closed, without a loss. (CUDA itself has no way back: only another process could open the
// device again. Here one is opened to show that nothing is left.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/device/compute_device.h"
#include "tests/gpu/failing/failing_calls.h"
#include "tests/support/session_feed.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/context.h"
#include "topkv/context_file.h"
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
using Outs = std::vector<std::vector<float>>;

/// Loses the device at the first call, the second, then at calls ever further apart, until there
/// are no more; gives how many there were. make(): a life whose device works. Its run() ends with a
/// call of CUDA; its when_lost() asks for more.
template <class Make>
std::int64_t lose_each(const Make& make) {
  std::int64_t before = 0;
  for (std::int64_t n = -1;; n += 1 + std::max<std::int64_t>(0, n) / 8) {
    bool reached = false;
    {
      auto life = make();
      const FailingCall failing(Calls::lost, n);
      bool told = false;
      try {
        life->run();
      } catch (const Error& error) {
        told = true;
        EXPECT_GT(std::strlen(error.what()), 20U);
      }
      reached = n >= 0 && FailingCall::left() < 0;
      EXPECT_EQ(told, reached) << FailingCall::name() << ", number " << n;
      if (reached) life->when_lost();
      life.reset();
    }
    if (n < 0) before = device_things();
    EXPECT_EQ(device_things(), before) << "left by " << FailingCall::name() << ", number " << n;
    if (testing::Test::HasFailure() || (n >= 0 && !reached)) return n;
  }
}

constexpr std::int64_t first = 160;
constexpr std::int64_t last = first + 6;

/// A prefill, its index and a session over it, which goes on with single tokens.
struct Stack {
  /// What was read when nothing was lost.
  struct Wanted {
    Outs outs, of_host;
  };

  Stack(const TokenStream& of, const char* index, Wanted& from)
      : stream(of), wanted(from), feed(std::in_place, place, of, 0, last + 1) {
    options.index = index;
  }

  void run() {
    builder.emplace(stream.shape, ContextOptions{.capacity = first}, place.device());
    for (const std::int64_t begin : {std::int64_t{0}, first / 2}) {
      for (std::int64_t l = 0; l < stream.shape.layers; ++l)
        builder->attend(feed->step(l, begin, first / 2));
    }
    context = builder->freeze();
    session.emplace(context->with_index(options.index, {}, place.device()), options,
                    place.device());
    feed->run(*session, first + 3, 3);
    feed->run(*session, last, 1);
    session->stats();
    const Outs got = feed->outs();
    if (wanted.outs.empty()) {
      wanted.outs = got;
      wanted.of_host = on_host();
    }
    // As it is read a token is not there yet: NaN.
    for (std::size_t l = 0; l < got.size(); ++l)
      EXPECT_TRUE(std::memcmp(got[l].data(), wanted.outs[l].data(), got[l].size() * 4) == 0);
  }

  /// The same tokens, with a session that has no part in the device.
  Outs on_host() const {
    const Place host("cpu");
    RetrievalOptions exact = options;
    exact.index = "exact";
    Session session(context, exact);
    Feed feed(host, stream, first, last);
    feed.run(session, 1);
    return feed.outs();
  }

  void when_lost() {
    if (builder) {
      EXPECT_THROW(builder->attend(feed->step(0, first / 2, first / 2)), Error);
      EXPECT_THROW(builder->freeze(), Error);
    }
    if (session) {
      EXPECT_THROW(feed->attend(*session, 0, session->tokens(), 1), Error);
      EXPECT_THROW(session->fork(), Error);
      EXPECT_LE(session->tokens(), last);
    }
    if (!context) return;
    EXPECT_THROW(Session(context, {.capacity = 16}, place.device()), Error);
    EXPECT_EQ(on_host(), wanted.of_host);
    save_context(*context, folder.path() / "c.tkv");
    EXPECT_NO_THROW(verify_context(folder.path() / "c.tkv"));
  }

  const TokenStream& stream;
  Wanted& wanted;
  const TempDirectory folder;
  RetrievalOptions options{.k = TopK::same(8), .window = 16, .sinks = 4, .capacity = 16};
  Place place{"cuda"};
  std::optional<Feed> feed;
  std::optional<ContextBuilder> builder;
  std::shared_ptr<const Context> context;
  std::optional<Session> session;
};

class LostDevice : public testing::TestWithParam<const char*> {};

TEST_P(LostDevice, IsToldByEveryCallAndAllIsClosed) {
  TOPKV_NEEDS_GPU();
  const TokenStream stream({.layers = 3, .q_heads = 4, .kv_heads = 2, .head_dim = 64}, last + 1);
  Stack::Wanted wanted;
  const auto make = [&] { return std::make_unique<Stack>(stream, GetParam(), wanted); };
  EXPECT_GT(lose_each(make), 100);
}

INSTANTIATE_TEST_SUITE_P(Index, LostDevice, testing::Values("exact", "codes", "quest:page=4"));

/// A model out of its files, a prefill, and tokens one by one, so that work is recorded.
struct Network {
  Network(const std::filesystem::path& from, std::vector<float>& when_whole)
      : folder(from), wanted(when_whole) {}

  void run() {
    const std::vector<Token> text = some_tokens(44, Sizes{}.vocab);
    const std::span<const Token> tokens = text;
    model.emplace(Model::load(folder, place.device()));
    context = model->prefill(tokens.first(40), {.indices = {"codes"}});
    session.emplace(
        context,
        RetrievalOptions{.index = "codes", .k = TopK::same(4), .window = 4, .capacity = 64},
        place.device());
    std::vector<float> got;
    for (const Token token : tokens.subspan(40))
      got = model->logits(*session, std::vector<Token>{token});
    session->stats();
    const auto lock = place.compute().lock();
    place.compute().synchronize();
    if (wanted.empty()) wanted = got;
    EXPECT_EQ(got, wanted);
  }

  void when_lost() {
    EXPECT_THROW(Model::load(folder, place.device()), Error);
    if (!model) return;
    EXPECT_THROW(model->prefill(some_tokens(40, Sizes{}.vocab)), Error);
    if (!session) return;
    EXPECT_THROW(model->logits(*session, std::vector<Token>{1}), Error);
  }

  const std::filesystem::path folder;
  std::vector<float>& wanted;
  Place place{"cuda"};
  std::optional<Model> model;
  std::shared_ptr<const Context> context;
  std::optional<Session> session;
};

TEST(LostDeviceOfAModel, IsToldByEveryCallAndAllIsClosed) {
  TOPKV_NEEDS_GPU();
  TempDirectory folder;
  folder.write("model.safetensors", file_of(random_tensors(Sizes{})));
  folder.write("config.json", config_of(Sizes{}).dump());
  std::vector<float> wanted;
  const auto make = [&] { return std::make_unique<Network>(folder.path(), wanted); };
  EXPECT_GT(lose_each(make), 100);
}

}  // namespace
}  // namespace topkv
