// The bundled model with dual chunk attention put into a copy of its config.json, on the host and on
// a device: plain below one chunk, and at work over many.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/bundled_model.h"
#include "tests/support/session_feed.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

using ::test::Place;
using Json = nlohmann::json;

const std::filesystem::path bundled_files = TOPKV_SOURCE_DIR "/models/needle-14m";

/// |a - b| / |b|
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  return reference::distance({a}, {b});
}

class ModelChunks : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { TOPKV_NEEDS_DEVICE(GetParam()); }

  /// The bundled model with this dual_chunk_attention_config.
  Model with(const Json& chunks, const Place& place) {
    for (const char* name : {"model.safetensors", "tokenizer.json"}) {
      std::filesystem::remove(temp_.path() / name);
      std::filesystem::create_symlink(bundled_files / name, temp_.path() / name);
    }
    std::ifstream file(bundled_files / "config.json");
    Json config = Json::parse(file);
    config["dual_chunk_attention_config"] = chunks;
    temp_.write("config.json", config.dump());
    return Model::load(temp_.path(), place.device());
  }

 private:
  TempDirectory temp_;
};

INSTANTIATE_TEST_SUITE_P(Everywhere, ModelChunks, testing::ValuesIn(::test::devices));

TEST_P(ModelChunks, BelowOneChunkLogitsAreThoseWithoutIt) {
  const Place place(GetParam());
  const Model plain = ::test::bundled(place.device());
  const Model chunked = with({{"chunk_size", 800}, {"local_size", 100}}, place);
  ASSERT_EQ(chunked.config().attention.chunk_len, 700);
  const auto tokens = ::test::text_with_fact(plain, 600);
  const auto got = chunked.logits(tokens);
  const auto want = plain.logits(tokens);
  if (place.is_cuda()) {
    EXPECT_LT(distance(got, want), 1e-4);
  } else {
    EXPECT_EQ(got, want);
  }
}

/// 20 chunks of 300 tokens, dense and retrieving.
TEST_P(ModelChunks, FactsOfFarChunksAreFound) {
  const Place place(GetParam());
  const Model model = with({{"chunk_size", 384}, {"local_size", 84}}, place);
  const auto question = ::test::question(model);
  for (const Prefill mode : {Prefill::dense, Prefill::window}) {
    const auto context = model.prefill(
        ::test::text_with_fact(model, 6000),
        {.attention = {.mode = mode}, .indices = {"codes:k=32,v=8"}});
    for (const char* index : {"exact", "codes:k=32,v=8"}) {
      Session session(context, {.index = index, .k = TopK::same(32), .window = 256},
                      place.device());
      const auto result = model.generate(session, question, {.max_tokens = 10});
      EXPECT_NE(model.tokenizer().decode(result.tokens).find("4512378"), std::string::npos)
          << index << ": " << model.tokenizer().decode(result.tokens);
    }
  }
}

/// Also where scores grow with the text, which is as long however it is cut.
TEST_P(ModelChunks, PrefillsOfAnyChunkGiveTheSameLogits) {
  const Place place(GetParam());
  const Model model = with({{"chunk_size", 256},
                            {"local_size", 56},
                            {"original_max_position_embeddings", 300}},
                           place);
  const auto tokens = ::test::text_with_fact(model, 1500);
  const auto question = ::test::question(model);
  std::vector<float> want;
  for (const std::int64_t chunk : {2048, 200, 177}) {
    const auto context = model.prefill(tokens, {.chunk = chunk});
    Session session(context, {.k = TopK::same(1 << 20), .window = 64}, place.device());
    const auto got = model.logits(session, question);
    if (want.empty()) want = got;
    // Rows are stored in bf16, into which the same number may be rounded in two ways; so are
    // activations on a device.
    EXPECT_LT(distance(got, want), place.is_cuda() ? 0.05 : 0.02) << "chunks of " << chunk;
  }
}

TEST_P(ModelChunks, ContextsOfOtherChunksAreRefused) {
  const Place place(GetParam());
  const Model plain = ::test::bundled(place.device());
  const Model chunked = with({{"chunk_size", 800}, {"local_size", 100}}, place);
  const std::vector<Token> some(50, 5);
  Session session(plain.prefill(some), {}, place.device());
  EXPECT_THROW(chunked.generate(session, some), InvalidArgument);
  Session other(chunked.prefill(some), {}, place.device());
  EXPECT_THROW(plain.generate(other, some), InvalidArgument);
}

}  // namespace
}  // namespace topkv
