// A model's own draft layer: its logits against tools/make_draft_layer_fixtures.py, and its reader,
// which follows a session, against the layer run over all states at once.
#include "src/model/draft_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/core/math/convert.h"
#include "src/model/draft_sizes.h"
#include "src/model/generate/draft_layer_reader.h"
#include "src/model/weights/checkpoint.h"
#include "src/model/weights/safetensors.h"
#include "tests/support/draft_layers.h"
#include "tests/support/drafts.h"
#include "topkv/context.h"
#include "topkv/error.h"

namespace topkv {
namespace {

// As of parity_test.cc: the layer computes in float32 what the script computes in float64.
constexpr double tolerance = 2e-5;

/// A checkpoint with a draft layer, and the networks of both.
struct Networks {
  explicit Networks(const std::string& name) {
    ::test::write_with_draft_layer(folder.path(), name);
    config = ModelConfig::load(folder.path());
    checkpoint = Checkpoint::open(folder.path());
    weights = Weights::load(*checkpoint, config, *device.compute(), {});
    layer = std::make_shared<const DraftLayer>(*checkpoint, config, weights, device,
                                               WeightFormat::stored);
    model.emplace(config, weights, device.compute(), 64);
  }
  Session layer_session() const {
    return Session(layer->nothing, draft_retrieval(layer->window), device);
  }

  TempDirectory folder;
  Device device;
  ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  Weights weights;
  std::shared_ptr<const DraftLayer> layer;
  std::optional<Forward> model;
};

/// Returns the largest difference, relative to the largest of the expected values.
double relative_error(std::span<const float> got, std::span<const float> expected) {
  double largest = 0;
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(double{expected[i]}));
    const double difference = std::abs(double{got[i]} - double{expected[i]});
    if (!(difference <= worst)) worst = difference;
  }
  return worst / largest;
}

class DraftLayers : public testing::TestWithParam<const char*> {
 protected:
  std::vector<float> reference(const char* name, std::int64_t rows, std::int64_t width) const {
    const auto tensors =
        SafeTensors::open(::test::fixtures("draft_layers") / GetParam() / "reference");
    const auto tensor = tensors.get(name, std::vector<std::int64_t>{rows, width});
    std::vector<float> values(static_cast<std::size_t>(rows * width));
    to_float(tensor.data, tensor.dtype, rows * width, values.data());
    return values;
  }
  std::vector<Token> tokens(const char* name) const {
    std::ifstream file(::test::fixtures("draft_layers") / GetParam() / "tokens.json");
    return nlohmann::json::parse(file).at(name).get<std::vector<Token>>();
  }
};

// One by one and in steps of several, then over its own states.
TEST_P(DraftLayers, LogitsAreThoseOfTheReference) {
  const Networks networks(GetParam());
  ASSERT_TRUE(Weights::has_draft_layer(*networks.checkpoint, networks.config));
  const std::vector<Token> read = tokens("tokens");
  const std::vector<Token> chain = tokens("chain");
  const std::int64_t hidden = networks.config.hidden_size;
  const std::int64_t vocab = networks.config.vocab_size;
  const std::int64_t count = std::ssize(read);
  const auto states = reference("states", count, hidden);
  const auto expected = reference("logits", count, vocab);
  const auto chained = reference("chained", std::ssize(chain), vocab);
  for (const std::int64_t step : {1, 3, 20}) {
    const ForwardLease lease(networks.layer->forwards);
    Forward& pass = *lease;
    Session session = networks.layer_session();
    std::vector<float> got(expected.size());
    std::int64_t last = 0;
    for (std::int64_t at = 0; at < count; at += step) {
      const std::int64_t some = std::min(step, count - at);
      pass.run_draft(
          std::span(read).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(some)),
          std::span(states).subspan(static_cast<std::size_t>(at * hidden),
                                    static_cast<std::size_t>(some * hidden)),
          at, TextLayers::of(session));
      pass.logits(0, some, got.data() + at * vocab);
      last = some - 1;
    }
    EXPECT_LE(relative_error(got, expected), tolerance) << step;
    std::vector<float> of_chain(chained.size());
    std::vector<float> state(static_cast<std::size_t>(hidden));
    for (std::int64_t i = 0; i < std::ssize(chain); ++i, last = 0) {
      pass.states(last, 1, state);
      pass.run_draft({&chain[static_cast<std::size_t>(i)], 1}, state, count + i,
                     TextLayers::of(session));
      pass.logits(0, 1, of_chain.data() + i * vocab);
    }
    EXPECT_LE(relative_error(of_chain, chained), tolerance) << step;
  }
}

// The states that are kept of the model are those that its output layer reads.
TEST_P(DraftLayers, StatesAreBehindTheLastNorm) {
  Networks networks(GetParam());
  const std::vector<Token> read = tokens("tokens");
  const std::int64_t hidden = networks.config.hidden_size;
  const std::int64_t vocab = networks.config.vocab_size;
  Session session(
      ContextBuilder(networks.config.attention, {.capacity = 1}, networks.device).freeze(),
      {.capacity = 64}, networks.device);
  networks.model->run(read, 0, std::ssize(read), TextLayers::of(session));
  std::vector<float> states(read.size() * static_cast<std::size_t>(hidden));
  networks.model->states(0, std::ssize(read), states);
  std::vector<float> logits(read.size() * static_cast<std::size_t>(vocab));
  networks.model->logits(0, std::ssize(read), logits.data());
  const FileTensors files = read_tensors(networks.folder.path() / "model.safetensors");
  std::vector<float> head(static_cast<std::size_t>(vocab * hidden));
  to_float(reinterpret_cast<const std::byte*>(files.at("lm_head.weight").bytes.data()), DType::bf16,
           vocab * hidden, head.data());
  std::vector<float> expected;
  for (std::size_t t = 0; t < read.size(); ++t) {
    for (std::int64_t v = 0; v < vocab; ++v) {
      double sum = 0;
      for (std::int64_t i = 0; i < hidden; ++i)
        sum += double{head[static_cast<std::size_t>(v * hidden + i)]} *
               double{states[t * static_cast<std::size_t>(hidden) + static_cast<std::size_t>(i)]};
      expected.push_back(static_cast<float>(sum));
    }
  }
  EXPECT_LE(relative_error(logits, expected), 1e-5);
}

/// A session of the model, its text, and a reader of the draft layer that follows it.
class Followed {
 public:
  explicit Followed(Networks& networks)
      : networks_(networks),
        text_(nullptr, 0),
        session_(
            ContextBuilder(networks.config.attention, {.capacity = 1}, networks.device).freeze(),
            {.window = 4096, .capacity = 2048}, networks.device),
        pass_(networks.layer->forwards),
        reader_(networks.layer) {}

  /// The model reads tokens. keeps: the reader keeps their states.
  void feed(std::span<const Token> tokens, bool keeps = true) {
    const std::int64_t at = session_.own_tokens();
    networks_.model->run(tokens, at, at + std::ssize(tokens), TextLayers::of(session_));
    text_.set(at, tokens);
    const auto hidden = static_cast<std::size_t>(networks_.config.hidden_size);
    states_.resize(static_cast<std::size_t>(at + std::ssize(tokens)) * hidden);
    networks_.model->states(0, std::ssize(tokens),
                            std::span(states_).subspan(static_cast<std::size_t>(at) * hidden));
    if (keeps) reader_.keep(at, tokens, *networks_.model);
  }
  void truncate(std::int64_t tokens) {
    session_.truncate(tokens);
    text_.truncate(tokens);
  }

  /// The reader drafts `drafts` tokens behind a last token, which is not fed. Compares it with the
  /// layer run over the states from token `first` on. Returns these tokens.
  std::vector<Token> expect_drafts(Token last, std::int64_t first, std::int64_t drafts = 3) {
    std::vector<Token> drafted = {last};
    text_.set(session_.own_tokens(), {&last, 1});
    EXPECT_TRUE(reader_.read(text_, *pass_));
    const ForwardLease lease(networks_.layer->forwards);
    Forward& whole = *lease;
    Session alone = networks_.layer_session();
    const auto hidden = static_cast<std::size_t>(networks_.config.hidden_size);
    std::vector<float> logits(static_cast<std::size_t>(networks_.config.vocab_size));
    std::vector<float> state(hidden);
    for (std::int64_t at = first; at < session_.own_tokens(); ++at) {
      const Token next = text_.token(at + 1);
      whole.run_draft({&next, 1},
                      std::span(states_).subspan(static_cast<std::size_t>(at) * hidden, hidden),
                      at - first, TextLayers::of(alone));
    }
    for (std::int64_t i = 0; i < drafts; ++i) {
      const Drafter::Guess want = likeliest_after(0, whole, logits);
      const Drafter::Guess got = reader_.guess(*pass_);
      EXPECT_EQ(got.token, want.token) << first << ", draft " << i;
      EXPECT_NEAR(got.probability, want.probability, 1e-5);
      drafted.push_back(want.token);
      reader_.read(want.token, *pass_);
      whole.states(0, 1, state);
      whole.run_draft({&want.token, 1}, state, alone.tokens(), TextLayers::of(alone));
    }
    return drafted;
  }
  void expect_none(Token last) {
    text_.set(session_.own_tokens(), {&last, 1});
    EXPECT_FALSE(reader_.read(text_, *pass_));
  }
  std::int64_t tokens() const { return session_.own_tokens(); }

 private:
  Networks& networks_;
  PastTokens text_;
  Session session_;
  std::vector<float> states_;  // of all tokens that the model read
  ForwardLease pass_;
  DraftLayerReader reader_;
};

TEST_P(DraftLayers, ReaderFollowsTheSession) {
  Networks networks(GetParam());
  Followed followed(networks);
  const auto all = ::test::repeating_text(200, 3);
  const auto part = [&](std::size_t from, std::size_t count) {
    return std::span(all).subspan(from, count);
  };
  followed.expect_none(all[0]);
  followed.feed(part(0, 30));
  followed.expect_drafts(all[30], 0);
  followed.feed(part(30, 1));
  followed.expect_drafts(all[31], 0);
  // Not asked for some steps, of which one has several tokens.
  followed.feed(part(31, 1));
  followed.feed(part(32, 5));
  followed.expect_drafts(all[37], 0);
  // Another token follows than was read last.
  followed.expect_drafts(all[60], 0);
  // A draft of which two tokens are accepted: the model's states take the place of the layer's.
  const std::vector<Token> drafted = followed.expect_drafts(all[61], 0);
  followed.feed(std::span(drafted).first(3));
  followed.expect_drafts(all[62], 0);
  if (networks.config.attention.state_size.empty()) {
    // The session forgets, and reads other tokens, also when it is not asked meanwhile.
    followed.truncate(20);
    followed.expect_drafts(all[50], 0);
    followed.feed(part(50, 6));
    followed.truncate(22);
    followed.feed(part(70, 9));
    followed.expect_drafts(all[79], 0);
  }
  // A gap: tokens that nobody kept.
  const std::int64_t before = followed.tokens();
  followed.feed(part(80, 7), false);
  followed.expect_none(all[90]);
  followed.feed(part(90, 1));
  followed.expect_drafts(all[91], before + 7);
}

// With more tokens than the window, the last half of it stays.
TEST_P(DraftLayers, ReaderKeepsItsWindow) {
  Networks networks(GetParam());
  const std::int64_t window = networks.layer->window;
  ASSERT_EQ(window, networks.config.reach());  // of these models: 64 or 256
  Followed followed(networks);
  const auto all = ::test::repeating_text(700, 4);
  std::int64_t first = 0;
  for (std::int64_t at = 0; at < 600;) {
    const std::int64_t count = at % 3 == 0 ? 61 : 7;
    followed.feed(
        std::span(all).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
    at += count;
    if (at - first > window) first = at - window / 2;
    if (at % 4 == 0) followed.expect_drafts(all[static_cast<std::size_t>(at)], first, 2);
  }
  EXPECT_GT(first, 300);
  followed.expect_drafts(5, first);
}

INSTANTIATE_TEST_SUITE_P(Families, DraftLayers,
                         testing::Values("qwen3-5", "qwen3-5-moe", "qwen3-next", "deepseek-v3",
                                         "glm4-moe-lite"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace topkv
