// Layers with a recurrent state, as a test's own network has them: a builder and sessions keep
// their states beside the rows, share them, fork them, save and load them, and go back to
// snapshots.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/support/session_feed.h"
#include "tests/support/temp_directory.h"
#include "topkv/context_file.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

using ::test::Feed;
using ::test::Place;
using ::test::TokenStream;

constexpr std::int64_t recurrent_tokens = 120;
constexpr std::int64_t recurrent_total = 200;
constexpr std::int64_t state_values = 6;

/// Three of four layers are recurrences, as in the hybrids that people run; the last layer attends
/// the rows of another one.
AttentionShape hybrid() {
  return {.layers = 6,
          .q_heads = 4,
          .kv_heads = 2,
          .head_dim = 64,
          .row_layer = {0, 1, 2, 3, 4, 3},
          .state_size = {state_values, state_values, state_values, 0, state_values, 0}};
}

/// A network of one recurrence for each layer with a state: s = s / 2 + x, where x are the first
/// values of the layer's queries.
class Network {
 public:
  explicit Network(const std::string& device)
      : place_(device),
        stream_(hybrid(), recurrent_total),
        feed_(place_, stream_, 0, recurrent_total) {}

  const Place& place() const { return place_; }
  const TokenStream& stream() const { return stream_; }
  const Feed& feed() const { return feed_; }

  /// The state after `tokens` tokens, from a state that stands for `from` tokens.
  std::vector<float> state(std::int64_t layer, std::int64_t tokens,
                           std::span<const float> before = {}, std::int64_t from = 0) const {
    std::vector<float> values(before.begin(), before.end());
    values.resize(state_values, 0.0F);
    for (std::int64_t t = from; t < tokens; ++t) {
      const float* x =
          &stream_
               .q[static_cast<std::size_t>(layer)][static_cast<std::size_t>(t * stream_.q_width())];
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = values[i] / 2 + x[i];
    }
    return values;
  }

  /// Gives a builder or a session tokens [from, until), `step` at a time.
  template <class Taker>
  void read(Taker& to, std::int64_t from, std::int64_t until, std::int64_t step) const {
    for (std::int64_t t = from; t < until; t += step) {
      const std::int64_t count = std::min(step, until - t);
      for (std::int64_t layer = 0; layer < stream_.shape.layers; ++layer) {
        if (stream_.shape.is_attention(layer)) {
          to.attend(feed_.step(layer, t, count));
        } else {
          to.advance(layer, count, state(layer, t + count, to.state(layer), t));
        }
      }
    }
  }

  std::shared_ptr<const Context> context() const {
    ContextBuilder builder(stream_.shape, {.capacity = recurrent_tokens}, place_.device());
    read(builder, 0, recurrent_tokens, 50);
    return builder.freeze();
  }

  /// Every recurrence of a builder, session or context has read exactly `tokens` tokens.
  template <class Taker>
  void expect_states(const Taker& of, std::int64_t tokens) const {
    for (const std::int64_t layer : {0, 1, 2, 4}) {
      const std::span<const float> got = of.state(layer);
      EXPECT_EQ(std::vector<float>(got.begin(), got.end()), state(layer, tokens))
          << "layer " << layer << " after " << tokens << " tokens";
    }
  }

 private:
  Place place_;
  TokenStream stream_;
  Feed feed_;
};

RetrievalOptions hybrid_options() {
  return {.k = TopK::same(8), .window = 16, .capacity = recurrent_total - recurrent_tokens};
}

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "(not refused)";
}

class RecurrentLayers : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { TOPKV_NEEDS_DEVICE(GetParam()); }
};

TEST_P(RecurrentLayers, GoThroughBuilderContextSessionAndForkBesideTheRows) {
  const Network network(GetParam());
  const auto context = network.context();
  EXPECT_EQ(context->tokens(), recurrent_tokens);
  network.expect_states(*context, recurrent_tokens);
  EXPECT_EQ(context->memory().states_bytes, 4 * state_values * 4);
  EXPECT_THROW(context->rows(0, 0), InvalidArgument);
  EXPECT_THROW(context->index("exact", 1, 0), InvalidArgument);
  EXPECT_THROW(context->state(3), InvalidArgument);
  Session session(context, hybrid_options(), network.place().device());
  network.expect_states(session, recurrent_tokens);
  network.read(session, recurrent_tokens, 150, 1);
  Session fork = session.fork();
  network.read(session, 150, recurrent_total, 7);
  network.expect_states(session, recurrent_total);
  network.expect_states(fork, 150);
  network.read(fork, 150, recurrent_total, 10);
  network.expect_states(fork, recurrent_total);
  network.expect_states(*context, recurrent_tokens);
  std::vector<std::int64_t> positions;
  for (std::int64_t p = recurrent_tokens; p < recurrent_total; ++p) positions.push_back(p);
  // Attention is what it is without the other layers: the recurrences' out is never written.
  const auto outs = network.feed().outs();
  double worst = 0;
  for (const std::int64_t layer : {3, 5}) {
    for (const std::int64_t p : positions) {
      for (std::int64_t head = 0; head < 4; ++head) {
        const auto found = ::test::found_rows(network.stream(), hybrid_options(), layer, p, head);
        const float* out =
            &outs[static_cast<std::size_t>(layer)]
                 [static_cast<std::size_t>(p * network.stream().q_width() + head * 64)];
        worst = std::max(
            worst, network.stream().error(
                       layer, p, head, network.place().is_cuda(), out, nullptr,
                       [&](std::int64_t x) { return x < 4 || x > p - 16 || found.contains(x); }));
      }
    }
  }
  EXPECT_LE(worst, 1);
}

TEST_P(RecurrentLayers, GoBackToSnapshotsAndReadOn) {
  const Network network(GetParam());
  Session session(network.context(), hybrid_options(), network.place().device());
  network.read(session, recurrent_tokens, 140, 4);
  session.snapshot();
  network.read(session, 140, 170, 5);
  session.snapshot();
  network.read(session, 170, recurrent_total, 5);
  Session fork = session.fork();
  for (Session* each : {&session, &fork}) {
    EXPECT_EQ(each->reachable(80), 80);
    EXPECT_EQ(each->reachable(79), 75);  // before the last step
    EXPECT_EQ(each->reachable(74), 50);
    EXPECT_EQ(each->reachable(49), 20);
    EXPECT_EQ(each->reachable(19), 0);
    const std::string refused = refusal_of([&] { each->truncate(60); });
    EXPECT_NE(refused.find("truncate to 50"), refused.npos) << refused;
    EXPECT_EQ(each->own_tokens(), 80);
    each->truncate(75);
    network.expect_states(*each, recurrent_tokens + 75);
    each->truncate(each->reachable(60));
    EXPECT_EQ(each->own_tokens(), 50);
    network.read(*each, 170, 180, 3);
    network.expect_states(*each, 180);
    each->truncate(20);
    network.expect_states(*each, 140);
    each->truncate(0);
    network.expect_states(*each, recurrent_tokens);
    network.read(*each, recurrent_tokens, 130, 10);
    network.expect_states(*each, 130);
  }
}

INSTANTIATE_TEST_SUITE_P(Everywhere, RecurrentLayers, testing::ValuesIn(::test::devices));

TEST(RecurrentLayers, AreSavedAndLoadedWithTheirSnapshots) {
  const Network network("cpu");
  const auto context = network.context()->with_index("codes:k=16,v=8");
  Session session(context, hybrid_options());
  network.read(session, recurrent_tokens, 140, 4);
  session.snapshot();
  network.read(session, 140, 150, 1);
  const TempDirectory folder;
  save_context(*context, folder.path() / "text.tkv");
  save_context(*session.own_rows(), folder.path() / "turns.tkv");
  for (const char* name : {"text.tkv", "turns.tkv"}) {
    verify_context(folder.path() / name);
    const ContextFileInfo info = context_file_info(folder.path() / name);
    EXPECT_EQ(info.version, std::string_view(name) == "text.tkv" ? 5 : 2);  // 5: its tail of codes
    EXPECT_EQ(info.shape.state_size, hybrid().state_size);
    save_context(*load_context(folder.path() / name).context, folder.path() / "again.tkv");
    EXPECT_EQ(context_file_info(folder.path() / "again.tkv").file_bytes, info.file_bytes);
  }
  EXPECT_EQ(context_file_info(folder.path() / "text.tkv").states_bytes,
            4 * (8 + 8 + state_values * 4));
  for (const bool mapped : {false, true}) {
    const auto loaded = load_context(folder.path() / "text.tkv", {.mapped = mapped}).context;
    network.expect_states(*loaded, recurrent_tokens);
    Session resumed(loaded, hybrid_options());
    resumed.resume(*load_context(folder.path() / "turns.tkv").context);
    network.expect_states(resumed, 150);
    network.read(resumed, 150, 160, 5);
    network.expect_states(resumed, 160);
    EXPECT_EQ(resumed.reachable(39), 35);
    EXPECT_EQ(resumed.reachable(34), 30);  // the last saved state is a snapshot
    EXPECT_EQ(resumed.reachable(29), 20);
    resumed.truncate(20);
    network.expect_states(resumed, 140);
  }
}

TEST(RecurrentLayers, OfABuilderGoBackAndMoveWithItsRows) {
  const Network network("cpu");
  ContextBuilder builder(network.stream().shape, {.capacity = 50});
  network.read(builder, 0, 20, 10);
  builder.snapshot();
  network.read(builder, 20, 50, 10);
  builder.reserve(recurrent_tokens);
  EXPECT_EQ(builder.reachable(45), 40);
  EXPECT_NE(refusal_of([&] { builder.truncate(30); }).find("truncate to 20"), std::string::npos);
  builder.truncate(builder.reachable(30));
  EXPECT_EQ(builder.tokens(0), 20);
  network.expect_states(builder, 20);
  network.read(builder, 20, recurrent_tokens, 50);
  const auto context = builder.freeze();
  network.expect_states(*context, recurrent_tokens);
  EXPECT_EQ(context->memory().states_bytes, 2 * 4 * state_values * 4);  // and the snapshot
}

TEST(RecurrentLayers, RefuseWhatIsNotTheirNextState) {
  const Network network("cpu");
  const auto context = network.context();
  Session session(context, hybrid_options());
  const std::vector<float> right = network.state(0, recurrent_tokens + 1);
  std::vector<float> wrong = right;
  wrong[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(session.advance(3, 1, right), InvalidArgument);  // attention
  EXPECT_THROW(session.advance(-1, 1, right), InvalidArgument);
  EXPECT_THROW(session.advance(6, 1, right), InvalidArgument);
  EXPECT_THROW(session.advance(0, 0, right), InvalidArgument);
  EXPECT_THROW(session.advance(0, 1, wrong), InvalidArgument);
  EXPECT_THROW(session.advance(0, 1, std::span(right).first(5)), InvalidArgument);
  EXPECT_THROW(session.advance(0, 81, right), InvalidArgument);  // beyond the capacity
  network.expect_states(session, recurrent_tokens);
  EXPECT_THROW(session.attend(network.feed().step(0, recurrent_tokens, 1)), InvalidArgument);
  session.advance(0, 1, right);
  EXPECT_THROW(session.advance(0, 1, right), InvalidArgument);  // the others have no token yet
  EXPECT_THROW(session.snapshot(), InvalidArgument);
  EXPECT_THROW(session.own_rows(), InvalidArgument);
  EXPECT_THROW(session.attend(network.feed().step(3, recurrent_tokens, 2)), InvalidArgument);
  // In any order: the rest of the token, and then the step of attention.
  session.attend(network.feed().step(3, recurrent_tokens, 1));
  EXPECT_THROW(session.advance(1, 2, right), InvalidArgument);
  for (const std::int64_t layer : {1, 2, 4})
    session.advance(layer, 1, network.state(layer, recurrent_tokens + 1));
  session.attend(network.feed().step(5, recurrent_tokens, 1));
  network.expect_states(session, recurrent_tokens + 1);
  session.truncate(0);
  ContextBuilder builder(hybrid(), {.capacity = 4});
  AttentionStep of_some = network.feed().step(3, 0, 2);
  of_some.kv_tokens = 1;
  EXPECT_THROW(builder.attend(of_some), InvalidArgument);  // sharded by sequence
  AttentionShape shape = hybrid();
  shape.state_size.assign(6, 1);
  EXPECT_THROW(shape.check(), InvalidArgument);  // no attention
  shape = hybrid();
  shape.sliding_window = {8, 0, 0, 0, 0, 0};
  EXPECT_THROW(shape.check(), InvalidArgument);
  shape = hybrid();
  shape.row_layer[4] = 3;
  EXPECT_THROW(shape.check(), InvalidArgument);
}

}  // namespace
}  // namespace topkv
