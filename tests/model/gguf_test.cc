// GGUF files: the same model as its directory in Hugging Face layout, token for token; and files
// that are broken, hostile or of a kind that topkv does not run, each told in one line. What blocks
// of each type stand for is in the fixtures of parity_test.cc, which the gguf package wrote.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/support/gguf_writer.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path root = TOPKV_SOURCE_DIR;

Json json_of(const fs::path& path) { return Json::parse(read_file(path)); }

class Gguf : public testing::Test {
 protected:
  fs::path write(const gguf::File& file) const { return temp_.write("model.gguf", file.content()); }
  fs::path write(const std::string& content) const { return temp_.write("model.gguf", content); }
  std::string begins() const { return (temp_.path() / "model.gguf").string() + ": "; }

  static gguf::File small(const Sizes& sizes = {}) {
    return gguf::llama(config_of(sizes), random_tensors(sizes));
  }

  /// Config, load and plan say so.
  template <class E>
  void expect_refused(const gguf::File& file, const std::vector<std::string_view>& parts) const {
    const fs::path path = write(file);
    expect_error<E>([&] { ModelConfig::load(path); }, begins(), parts);
    expect_error<E>([&] { Model::load(path); }, begins(), parts);
    expect_error<E>([&] { Model::plan(path, {}, {}, {}); }, begins(), parts);
  }
  /// Load and plan do; the configuration is fine.
  template <class E>
  void expect_weights_refused(const gguf::File& file,
                              const std::vector<std::string_view>& parts) const {
    const fs::path path = write(file);
    ModelConfig::load(path);
    expect_error<E>([&] { Model::load(path); }, begins(), parts);
    expect_error<E>([&] { Model::plan(path, {}, {}, {}); }, begins(), parts);
  }
  template <class E>
  void expect_bytes_refused(const std::string& content,
                            const std::vector<std::string_view>& parts) {
    write(content);
    const fs::path path = temp_.path() / "model.gguf";
    expect_error<E>([&] { Model::load(path); }, begins(), parts);
  }

  TempDirectory temp_;
};

TEST_F(Gguf, TheBundledModelAsOneFileIsTheSameModel) {
  const fs::path directory = root / "models/needle-14m";
  gguf::File file = gguf::llama(json_of(directory / "config.json"),
                                read_tensors(directory / "model.safetensors"));
  file.set(gguf::real("llama.rope.freq_base", 1e10F));
  gguf::add_tokenizer(file, json_of(directory / "tokenizer.json"), "qwen2");
  file.set(gguf::number("tokenizer.ggml.bos_token_id", 0));
  file.set(gguf::number("tokenizer.ggml.eos_token_id", 1));
  std::vector<std::string> warnings;
  const Model model =
      Model::load(write(file), {}, [&](const std::string& line) { warnings.push_back(line); });
  EXPECT_TRUE(warnings.empty()) << warnings.front();
  const Model same = Model::load(directory);
  const ModelConfig& config = model.config();
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.attention.layers, same.config().attention.layers);
  EXPECT_EQ(config.attention.head_dim, same.config().attention.head_dim);
  EXPECT_EQ(config.vocab_size, same.config().vocab_size);
  EXPECT_EQ(config.max_position, same.config().max_position);
  EXPECT_EQ(config.rope_theta, same.config().rope_theta);
  EXPECT_EQ(config.bos, 0);
  EXPECT_EQ(config.eos, std::vector<Token>{1});
  EXPECT_TRUE(config.tied_embeddings);
  const std::string text = "One of the special magic numbers for quiet-harbor is: 9260348.\n";
  const auto tokens = model.tokenizer().encode(text);
  EXPECT_EQ(tokens, same.tokenizer().encode(text));
  EXPECT_EQ(model.tokenizer().decode(tokens), text);
  expect_same(logits_both_ways(model, tokens), logits_both_ways(same, tokens));
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::int4}) {
    const LoadOptions options{.weights = format};
    expect_same(Model::load(temp_.path() / "model.gguf", {}, {}, options).logits(tokens),
                Model::load(directory, {}, {}, options).logits(tokens));
    EXPECT_EQ(Model::plan(temp_.path() / "model.gguf", {}, {}, {}, format).weights_bytes,
              Model::plan(directory, {}, {}, {}, format).weights_bytes);
  }
}

TEST_F(Gguf, WhatIsQuantisedAlreadyIsNotRoundedOnceMore) {
  const fs::path path = root / "tests/fixtures/parity/gguf-llama/model.gguf";
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::int4}) {
    expect_error<Unsupported>([&] { Model::load(path, {}, {}, {.weights = format}); },
                              path.string() + ": ",
                              {"quantised already (gguf, q6_K, q4_K, ", "stored"});
  }
}

// Llama 3.1's scaling is in the file as a tensor, not as a scaling with a name.
TEST_F(Gguf, FactorsOfRopeFreqsAreAScalingOfTheirOwn) {
  const ModelConfig config =
      ModelConfig::load(root / "tests/fixtures/parity/gguf-llama/model.gguf");
  const RopeScaling& scaling = config.rope_scaling;
  EXPECT_EQ(scaling.kind, RopeScaling::Kind::frequency_factors);
  ASSERT_EQ(std::ssize(scaling.pair_factors), config.rotary_dim / 2);
  EXPECT_EQ(scaling.pair_factors.front(), 1);
  EXPECT_GT(scaling.pair_factors.back(), 1);
  EXPECT_EQ(config.reach(), config.max_position);
  EXPECT_NE(config.beyond_reach(config.max_position + 1).find("max_position_embeddings"),
            std::string::npos);
}

TEST_F(Gguf, TokenizersAreThoseOfTheirTokenizerJson) {
  std::vector<std::string> texts;
  const Json cases = json_of(root / "tests/fixtures/tokenizer/cases.json");
  for (const Json& text : cases["texts"]) {
    if (text.is_string()) texts.push_back(text);
  }
  ASSERT_GT(texts.size(), 20U);
  for (const auto& [name, pre] : std::vector<std::pair<std::string, std::string>>{
           {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}, {"gpt2", "gpt-2"}}) {
    SCOPED_TRACE(name);
    Json json = json_of(root / "tests/fixtures/tokenizer" / (name + ".json"));
    // GGUF says of added tokens what they are and nothing else.
    Json added = Json::array();
    for (const Json& token : json["added_tokens"]) {
      const bool plain = !token["normalized"].get<bool>() && !token["lstrip"].get<bool>() &&
                         !token["rstrip"].get<bool>();
      if (plain || token["special"].get<bool>()) added.push_back(token);
    }
    json["added_tokens"] = Json::array();
    for (Json token : added) {  // ids without gaps
      token["normalized"] = false;
      if (!json["model"]["vocab"].contains(token["content"].get<std::string>())) {
        token["id"] = json["model"]["vocab"].size() + json["added_tokens"].size();
      }
      json["added_tokens"].push_back(token);
    }
    if (name == "gpt2") json["pre_tokenizer"]["add_prefix_space"] = false;
    gguf::File file = small();
    gguf::add_tokenizer(file, json, pre);
    if (name == "llama3") {
      for (const Json& token : json["added_tokens"]) {
        if (token["content"] == "<|begin_of_text|>")
          file.set(gguf::number("tokenizer.ggml.bos_token_id", token["id"].get<std::uint32_t>()));
      }
    }
    const Tokenizer tokenizer = Tokenizer::load(write(file));
    const Tokenizer same = Tokenizer::load(temp_.write("tokenizer.json", json.dump()));
    for (const std::string& text : texts) {
      const auto ids = same.encode(text, true);
      ASSERT_EQ(tokenizer.encode(text, true), ids) << text;
      ASSERT_EQ(tokenizer.decode(ids), same.decode(ids)) << text;
    }
    EXPECT_EQ(tokenizer.encode("x", true).size(), name == "llama3" ? 2U : 1U);
    file.set(gguf::flag("tokenizer.ggml.add_bos_token", name != "llama3"));
    file.set(gguf::number("tokenizer.ggml.bos_token_id", 3));
    EXPECT_EQ(Tokenizer::load(write(file)).encode("x", true).size(), name == "llama3" ? 1U : 2U);
  }
}

/// A file with SentencePiece's pieces as tokenizers' library was given them (pieces.json).
gguf::File with_pieces(gguf::File file, const Json& json) {
  gguf::add_tokenizer(file, json, "default");
  const std::size_t count = json["model"]["vocab"].size() + 1;  // <tool_call>
  std::vector<std::int32_t> types(count, 1);
  std::string scores =
      gguf::bytes(gguf::array) + gguf::bytes(gguf::f32) + gguf::bytes(std::uint64_t{count});
  for (std::size_t i = 0; i < count; ++i) {
    if (i < 259) types[i] = i == 0 ? 2 : i < 3 ? 3 : 6;
    scores += gguf::bytes(-static_cast<float>(i));
  }
  types.back() = 4;
  file.set(gguf::words("tokenizer.ggml.model", "llama"));
  file.set(gguf::integers("tokenizer.ggml.token_type", types));
  file.set({"tokenizer.ggml.scores", scores});
  file.set(gguf::number("tokenizer.ggml.bos_token_id", 1));
  file.erase("tokenizer.ggml.merges");
  return file;
}

TEST_F(Gguf, PiecesAreMergedByTheirScores) {
  const fs::path path = root / "tests/fixtures/tokenizer/pieces.json";
  const Tokenizer same = Tokenizer::load(path);
  gguf::File file = with_pieces(small(), json_of(path));
  const Tokenizer tokenizer = Tokenizer::load(write(file));
  const Json cases = json_of(root / "tests/fixtures/tokenizer/cases.json");
  for (const Json& text : cases["texts"]) {
    if (!text.is_string()) continue;
    const auto ids = same.encode(text.get<std::string>(), true);
    ASSERT_EQ(tokenizer.encode(text.get<std::string>(), true), ids) << text;
    ASSERT_EQ(tokenizer.decode(ids), same.decode(ids)) << text;
  }
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("kato mi\n\xF0\x9F\x98\x80")),
            "kato mi\n\xF0\x9F\x98\x80");
  // Without a space in front.
  file.set(gguf::flag("tokenizer.ggml.add_space_prefix", false));
  const Tokenizer bare = Tokenizer::load(write(file));
  EXPECT_EQ(bare.encode(" kato"), same.encode("kato"));
  EXPECT_EQ(bare.decode(bare.encode(" kato")), " kato");

  const auto expect = [&](const std::function<void(gguf::File&)>& change, auto error,
                          const std::vector<std::string_view>& says) {
    gguf::File changed = with_pieces(small(), json_of(path));
    change(changed);
    write(changed);
    expect_error<decltype(error)>([&] { Tokenizer::load(temp_.path() / "model.gguf"); }, begins(),
                                  says);
  };
  expect([](auto& f) { f.erase("tokenizer.ggml.scores"); }, FileError(""), {"scores is missing"});
  expect([](auto& f) { f.set(gguf::integers("tokenizer.ggml.scores", {1})); }, FileError(""),
         {"scores is an array of 1 int32s", "numbers"});
  expect([](auto& f) { f.set(gguf::flag("tokenizer.ggml.remove_extra_whitespaces", true)); },
         Unsupported(""), {"remove_extra_whitespaces is true"});
  expect(
      [](auto& f) {
        f.set({"tokenizer.ggml.scores", gguf::bytes(gguf::array) + gguf::bytes(gguf::f32) +
                                            gguf::bytes(std::uint64_t{1}) + gguf::bytes(0.0F)});
      },
      FileError(""), {"scores is an array of 1 float32s", "one for each"});
  expect(
      [](auto& f) {
        for (gguf::Value& value : f.values) {
          if (value.key == "tokenizer.ggml.scores")
            value.content.replace(value.content.size() - 8, 4,
                                  gguf::bytes(std::numeric_limits<float>::infinity()));
        }
      },
      FileError(""), {"is inf; expected finite numbers"});
}

TEST_F(Gguf, PiecesOfGemma4AreMergedByItsMerges) {
  const fs::path path = root / "tests/fixtures/tokenizer/pieces.json";
  const Tokenizer same = Tokenizer::load(path);
  const Json json = json_of(path);
  gguf::File scored = with_pieces(small(), json);
  gguf::File file = small();
  gguf::add_tokenizer(file, json, "default");
  file.erase("tokenizer.ggml.pre");
  file.set(gguf::words("tokenizer.ggml.model", "gemma4"));
  for (const gguf::Value& value : scored.values)
    if (value.key == "tokenizer.ggml.token_type") file.set(value);
  file.set(gguf::number("tokenizer.ggml.bos_token_id", 1));
  file.set(gguf::number("tokenizer.ggml.unknown_token_id", 0));
  file.set(gguf::flag("tokenizer.ggml.add_space_prefix", true));
  const Tokenizer tokenizer = Tokenizer::load(write(file));
  const Json cases = json_of(root / "tests/fixtures/tokenizer/cases.json");
  for (const Json& text : cases["texts"]) {
    if (!text.is_string()) continue;
    const auto ids = same.encode(text.get<std::string>(), true);
    ASSERT_EQ(tokenizer.encode(text.get<std::string>(), true), ids) << text;
    ASSERT_EQ(tokenizer.decode(ids), same.decode(ids)) << text;
  }
  file.erase("tokenizer.ggml.add_space_prefix");  // missing: no space in front
  const Tokenizer bare = Tokenizer::load(write(file));
  EXPECT_EQ(bare.encode(" kato"), same.encode("kato"));
  EXPECT_EQ(bare.decode(bare.encode(" kato")), " kato");
  file.erase("tokenizer.ggml.merges");
  write(file);
  expect_error<FileError>([&] { Tokenizer::load(temp_.path() / "model.gguf"); }, begins(),
                          {"tokenizer.ggml.merges is missing"});
}

TEST_F(Gguf, BytesWithoutATokenAreUnknownOrLeftOut) {
  // Of pieces: the unknown token stands for their characters, where there is one.
  const fs::path path = root / "tests/fixtures/tokenizer/pieces.json";
  gguf::File pieces = with_pieces(small(), json_of(path));
  for (gguf::Value& value : pieces.values) {
    if (value.key == "tokenizer.ggml.tokens")
      value.content.replace(value.content.find("<0xF0>"), 6, "<0xF!>");
  }
  const Tokenizer bare = Tokenizer::load(write(pieces));
  EXPECT_EQ(bare.encode("a\U00010348"), bare.encode("a"));
  EXPECT_NE(bare.left_out("a\U00010348"), "");
  pieces.set(gguf::number("tokenizer.ggml.unknown_token_id", 0));
  const Tokenizer unknown = Tokenizer::load(write(pieces));
  EXPECT_EQ(unknown.encode("a\U00010348\U00010348").back(), 0);
  EXPECT_EQ(unknown.encode("a\U00010348\U00010348").size(), unknown.encode("a").size() + 1);
  EXPECT_EQ(unknown.left_out("a\U00010348"), "");

  // Of bytes: they are left out, and an unknown token that is named stands for nothing, as in
  // SmolLM2's own tokenizer.json.
  gguf::File few = small();
  gguf::add_tokenizer(
      few,
      {{"added_tokens", Json::array()},
       {"model",
        {{"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"<|endoftext|>", 3}}}, {"merges", {"a b"}}}}},
      "smollm");
  few.set(gguf::number("tokenizer.ggml.unknown_token_id", 3));
  const Tokenizer tokenizer = Tokenizer::load(write(few));
  EXPECT_EQ(tokenizer.encode("ab\x04"), (std::vector<Token>{2}));
  EXPECT_NE(tokenizer.left_out("ab\x04").find("1 byte of the text, left out: 0x04 (1)"),
            std::string::npos);
}

// Gemma's files have runs of spaces as tokens of users, spelled as text and without scores. In its
// tokenizer.json they are pieces that are merged before all others.
TEST_F(Gguf, RunsOfSpacesArePiecesThatAreMergedFirst) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<std::int32_t> types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(fmt::format("<0x{:02X}>", byte));
    types.push_back(6);
  }
  constexpr Token two = 259, three = 260, space = 261, a = 262, space_a = 263;
  for (const char* text : {"  ", "   ", "\u2581", "a", "\u2581a"}) tokens.emplace_back(text);
  types.insert(types.end(), {4, 4, 1, 1, 1});
  std::string scores =
      gguf::bytes(gguf::array) + gguf::bytes(gguf::f32) + gguf::bytes(std::uint64_t{tokens.size()});
  for (std::size_t i = 0; i < tokens.size(); ++i)
    scores += gguf::bytes(i < space ? -1000.0F : -static_cast<float>(i));
  gguf::File file = small();
  file.set(gguf::words("tokenizer.ggml.model", "llama"));
  file.set(gguf::texts("tokenizer.ggml.tokens", tokens));
  file.set(gguf::integers("tokenizer.ggml.token_type", types));
  file.set({"tokenizer.ggml.scores", scores});
  file.set(gguf::number("tokenizer.ggml.bos_token_id", 1));
  file.set(gguf::flag("tokenizer.ggml.add_space_prefix", false));
  const Tokenizer tokenizer = Tokenizer::load(write(file));
  for (const auto& [text, ids] :
       std::vector<std::pair<std::string, std::vector<Token>>>{{"a a", {a, space_a}},
                                                               {"a  a", {a, two, a}},
                                                               {"   a", {three, a}},
                                                               {"    a", {two, two, a}},
                                                               {"a ", {a, space}}}) {
    EXPECT_EQ(tokenizer.encode(text), ids) << text;
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
  EXPECT_EQ(tokenizer.encode("\u2581\u2581a"), tokenizer.encode("  a"));
}

TEST_F(Gguf, TokensWithoutTextAreRowsOfTheEmbeddingAlone) {
  gguf::File file = small();
  file.set(gguf::words("tokenizer.ggml.model", "gpt2"));
  file.set(gguf::words("tokenizer.ggml.pre", "gpt-2"));
  file.set(gguf::texts("tokenizer.ggml.tokens", {"a", "", "b", "", "ab"}));
  file.set(gguf::integers("tokenizer.ggml.token_type", {1, 1, 1, 3, 1}));
  file.set(gguf::texts("tokenizer.ggml.merges", {"a b"}));
  EXPECT_EQ(Tokenizer::load(write(file)).encode("aab"), (std::vector<Token>{0, 4}));
}

TEST_F(Gguf, EveryNameOfAPreTokenizerCutsTextAsItsModelsDo) {
  const Json all = json_of(root / "tests/fixtures/tokenizer/gguf_pre.json");
  gguf::File file = small();
  const std::vector<std::string> tokens = all["tokens"];
  file.set(gguf::words("tokenizer.ggml.model", "gpt2"));
  file.set(gguf::texts("tokenizer.ggml.tokens", tokens));
  file.set(
      gguf::integers("tokenizer.ggml.token_type", std::vector<std::int32_t>(tokens.size(), 1)));
  file.set(gguf::texts("tokenizer.ggml.merges", all["merges"]));
  file.set(gguf::number("tokenizer.ggml.bos_token_id", 0));
  std::size_t names = 0;
  for (const Json& style : all["styles"]) {
    for (const Json& name : style["names"]) {
      ++names;
      file.set(gguf::words("tokenizer.ggml.pre", name.get<std::string>()));
      const Tokenizer tokenizer = Tokenizer::load(write(file));
      for (std::size_t i = 0; i < all["texts"].size(); ++i) {
        EXPECT_EQ(tokenizer.encode(all["texts"][i].get<std::string>()),
                  style["ids"][i].get<std::vector<Token>>())
            << name << ": " << all["texts"][i];
      }
    }
  }
  EXPECT_EQ(names, 61U);
}

/// A tokenizer.json with these texts as added tokens in the place of tokens from id 7 on.
Json with_added(Json json, const std::vector<std::string>& texts, bool special) {
  json["model"]["merges"] = Json::array();
  Json& vocabulary = json["model"]["vocab"];
  std::int64_t id = 7;
  for (const std::string& text : texts) {
    std::erase_if(vocabulary.get_ref<Json::object_t&>(),
                  [&](const auto& entry) { return entry.second == id; });
    vocabulary[text] = id;
    json["added_tokens"].push_back({{"id", id++},
                                    {"content", text},
                                    {"special", special},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"single_word", false},
                                    {"normalized", false}});
  }
  return json;
}

TEST_F(Gguf, GenerationEndsWithTheFilesEndsAndWithThoseOfTurnsAsInADirectory) {
  const Sizes sizes{.hidden = 32, .mlp = 32, .vocab = 4096, .head = 32};
  const FileTensors tensors = random_tensors(sizes);
  Json config = config_of(sizes);
  config["eos_token_id"] = {1, 9};
  temp_.write("model.safetensors", file_of(tensors));
  temp_.write("config.json", config.dump());
  const auto expect = [&](const std::vector<std::string>& added, bool special,
                          const std::vector<Token>& ends) {
    SCOPED_TRACE(added.front());
    const Json json =
        with_added(json_of(root / "models/needle-14m/tokenizer.json"), added, special);
    temp_.write("tokenizer.json", json.dump());
    EXPECT_EQ(Model::load(temp_.path()).config().eos, ends) << "directory";
    gguf::File file = gguf::llama(config, tensors);
    gguf::add_tokenizer(file, json, "qwen2");
    file.set(gguf::number("tokenizer.ggml.eos_token_id", 1));
    file.set(gguf::number("tokenizer.ggml.eot_token_id", 9));
    const fs::path gguf = temp_.write("model.gguf", file.content());
    EXPECT_EQ(Model::load(gguf).config().eos, ends) << "GGUF";
    fs::remove(gguf);
  };
  expect({"<|im_end|>"}, true, {1, 9, 7});
  expect({"<|im_end|>"}, false, {1, 9});  // text like any other
  expect({"<|im_start|>", "<|end|>", "<end_of_turn>"}, true, {1, 9, 8});
  // gpt-oss ends each channel of a turn with <|end|>, and the turn with <|return|>.
  expect({"<|end|>", "<|return|>", "<|call|>"}, true, {1, 9});
}

TEST_F(Gguf, EndsOutsideOfTheVocabularyAreRefused) {
  gguf::File file = small();
  gguf::add_tokenizer(file, json_of(root / "models/needle-14m/tokenizer.json"), "qwen2");
  file.set(gguf::number("tokenizer.ggml.eos_token_id", 101));
  expect_refused<FileError>(file, {"eos_token_id", "0 to 100"});
}

TEST_F(Gguf, WhatTheArchitectureSaysAndIsNotReadIsTold) {
  gguf::File file = small();
  file.set(gguf::number("llama.attention.sliding_window", 5));
  const auto warnings = ModelConfig::load(write(file)).warnings;
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("llama.attention.sliding_window is 5"), std::string::npos)
      << warnings[0];
}

/// As another architecture has it.
gguf::File renamed(gguf::File file, const std::string& architecture) {
  for (gguf::Value& value : file.values) {
    if (value.key.starts_with("llama.")) value.key.replace(0, 5, architecture);
  }
  file.set(gguf::words("general.architecture", architecture));
  return file;
}

TEST_F(Gguf, AQwenForLongerTextsThanItReadsWithoutChunksIsToldSo) {
  gguf::File file = renamed(small(), "qwen2");
  EXPECT_TRUE(ModelConfig::load(write(file)).warnings.empty());
  file.set(gguf::number("qwen2.context_length", 1010000));
  const auto warnings = ModelConfig::load(write(file)).warnings;
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("dual chunk attention"), std::string::npos) << warnings[0];
}

TEST_F(Gguf, WhatGemma3sFilesDoNotSayIsTheArchitectures) {
  gguf::File file = renamed(small(), "gemma3");
  file.set(gguf::number("gemma3.block_count", 13));
  expect_refused<FileError>(file, {"gemma3.attention.sliding_window is missing"});
  file.set(gguf::number("gemma3.attention.sliding_window", 512));
  const ModelConfig config = ModelConfig::load(write(file));
  EXPECT_EQ(config.model_type, "gemma3_text");
  EXPECT_EQ(
      config.attention.sliding_window,
      (std::vector<std::int64_t>{512, 512, 512, 512, 512, 0, 512, 512, 512, 512, 512, 0, 512}));
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.sliding_rope_theta, 1e4);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_FLOAT_EQ(config.attention.scale, 1 / std::sqrt(80.0F));
  EXPECT_EQ(config.final_softcap, 0);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_TRUE(config.warnings.empty()) << config.warnings.front();
  // Gemma 3 27B scales queries otherwise than the smaller ones.
  file.set(gguf::number("gemma3.block_count", 62));
  EXPECT_FLOAT_EQ(ModelConfig::load(write(file)).attention.scale, 1 / std::sqrt(48.0F));
}

TEST_F(Gguf, Gemma4sFilesSayTheHeadsOfEachKindOfLayer) {
  const fs::path fixtures = root / "tests/fixtures/parity";
  const ModelConfig shared = ModelConfig::load(fixtures / "gguf-gemma4/model.gguf");
  EXPECT_TRUE(shared.warnings.empty()) << shared.warnings.front();
  EXPECT_EQ(shared.model_type, "gemma4_text");
  EXPECT_EQ(shared.attention.head_dim, 64);
  EXPECT_EQ(shared.attention.sliding_head_dim, 32);
  EXPECT_EQ(shared.attention.sliding_window, (std::vector<std::int64_t>{0, 16, 0, 16, 0}));
  EXPECT_EQ(shared.attention.row_layer, (std::vector<std::int64_t>{0, 1, 2, 1, 2}));
  EXPECT_EQ(shared.intermediate_size_of(2), 32);
  EXPECT_EQ(shared.intermediate_size_of(3), 64);
  EXPECT_EQ(shared.layer_inputs.size, 32);
  EXPECT_FALSE(shared.values_from_keys);
  EXPECT_EQ(shared.rope_scaling.kind, RopeScaling::Kind::frequency_factors);
  const ModelConfig mixed = ModelConfig::load(fixtures / "gguf-gemma4-moe/model.gguf");
  EXPECT_TRUE(mixed.warnings.empty()) << mixed.warnings.front();
  EXPECT_EQ(mixed.attention.kv_heads, 1);
  EXPECT_EQ(mixed.attention.sliding_kv_heads, 2);
  EXPECT_TRUE(mixed.values_from_keys);
  EXPECT_EQ(mixed.mixture.experts, 6);
  EXPECT_EQ(mixed.mixture.per_token, 2);
  EXPECT_EQ(mixed.layer_inputs.size, 0);

  gguf::File file = renamed(small(), "gemma4");
  const auto key = [](const char* name) { return std::string("gemma4.") + name; };
  file.set(gguf::number(key("attention.sliding_window"), 16));
  expect_refused<FileError>(file, {"gemma4.attention.key_length_swa is missing"});
  file.set(gguf::number(key("attention.key_length_swa"), 40));
  file.set(gguf::number(key("attention.value_length_swa"), 20));
  expect_refused<Unsupported>(file, {"value_length_swa is 20", "heads of one length"});
  file.set(gguf::number(key("attention.value_length_swa"), 40));
  expect_refused<FileError>(file, {"sliding_window_pattern is missing", "a flag for each layer"});
  file.set(gguf::number(key("attention.sliding_window_pattern"), 2));
  expect_refused<FileError>(file, {"has no tensor rope_freqs.weight"});
}

TEST_F(Gguf, WhatGemma3sFilesSayOfRopeWindowsAndCapsIsRead) {
  gguf::File file = renamed(small(), "gemma3");
  file.set(gguf::number("gemma3.attention.sliding_window", 512));
  file.set(gguf::number("gemma3.attention.sliding_window_pattern", 2));
  file.set(gguf::real("gemma3.rope.freq_base", 5e5F));
  file.set(gguf::real("gemma3.rope.freq_base_swa", 2e4F));
  file.set(gguf::words("gemma3.rope.scaling.type", "linear"));
  file.set(gguf::real("gemma3.rope.scaling.factor", 8));
  file.set(gguf::real("gemma3.final_logit_softcapping", 30));
  const ModelConfig config = ModelConfig::load(write(file));
  EXPECT_EQ(config.attention.sliding_window, (std::vector<std::int64_t>{512, 0}));
  EXPECT_EQ(config.rope_theta, 5e5);
  EXPECT_EQ(config.sliding_rope_theta, 2e4);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_EQ(config.rope_scaling.factor, 8);
  EXPECT_EQ(config.final_softcap, 30);
  EXPECT_TRUE(config.warnings.empty()) << config.warnings.front();
  // Or which layers have a window, one by one.
  gguf::File layers = file;
  layers.set(gguf::flags("gemma3.attention.sliding_window_pattern", {false, true}));
  EXPECT_EQ(ModelConfig::load(write(layers)).attention.sliding_window,
            (std::vector<std::int64_t>{0, 512}));
  layers.set(gguf::flags("gemma3.attention.sliding_window_pattern", {false, true, true}));
  expect_refused<FileError>(layers, {"sliding_window_pattern is an array of 3 bools", "2 layers"});
  layers.set(gguf::integers("gemma3.attention.sliding_window_pattern", {0, 1}));
  expect_refused<FileError>(layers, {"an array of 2 int32s", "flags"});
  // Of a llama these are not read.
  gguf::File llama = small();
  llama.set(gguf::real("llama.rope.freq_base_swa", 2e4F));
  EXPECT_EQ(ModelConfig::load(write(llama)).warnings.size(), 1U);

  const auto refused = [&](const gguf::Value& value, const std::vector<std::string_view>& says) {
    gguf::File other = file;
    other.set(value);
    expect_refused<Unsupported>(other, says);
  };
  refused(gguf::words("gemma3.rope.scaling.type", "yarn"),
          {"scaling.type is \"yarn\"", "\"linear\" in gemma3"});
  gguf::File factors = file;
  factors.tensors.push_back({"rope_freqs.weight", {40}, 0, std::string(160, '\0')});
  expect_refused<Unsupported>(factors, {"has tensor rope_freqs.weight"});
}

TEST_F(Gguf, OtherModelsAreRefusedByKeyAndValue) {
  struct Case {
    gguf::Value value;
    std::vector<std::string_view> says;
  };
  for (const Case& one : std::vector<Case>{
           {gguf::words("general.architecture", "gemma"),
            {"\"gemma\"",
             "llama, qwen2, qwen3, qwen3moe, gpt-oss, mistral3, smollm3, phi3, glm4, olmo2, "
             "gemma2, gemma3"}},
           {gguf::flag("llama.attention.causal", false), {"causal is false"}},
           {gguf::number("llama.attention.value_length", 40), {"value_length is 40", "80"}},
           {gguf::number("llama.rope.dimension_count", 40), {"dimension_count is 40"}},
           {gguf::words("llama.rope.scaling.type", "su"), {"scaling.type is \"su\"", "yarn"}},
           {gguf::real("llama.rope.scaling.attn_factor", 2), {"attn_factor is 2"}},
           {gguf::real("llama.rope.scale_linear", 4), {"scale_linear is 4"}}}) {
    SCOPED_TRACE(one.value.key);
    gguf::File file = small();
    file.set(one.value);
    expect_refused<Unsupported>(file, one.says);
  }
}

TEST_F(Gguf, MetadataThatCannotBeIsNamed) {
  struct Case {
    gguf::Value value;
    std::vector<std::string_view> says;
  };
  for (const Case& one : std::vector<Case>{
           {gguf::number("general.architecture", 1), {"general.architecture is 1", "a text"}},
           {gguf::number("llama.embedding_length", 0), {"embedding_length is 0"}},
           {gguf::real("llama.embedding_length", 96), {"embedding_length is 96", "an integer"}},
           {gguf::words("llama.block_count", "two"), {"block_count is \"two\""}},
           {gguf::integers("llama.attention.head_count_kv", {1, 1}), {"an array of 2 int32s"}},
           {gguf::number("llama.attention.head_count", 3), {"attn_q.weight", "[160, 96]"}},
           {gguf::number("llama.attention.head_count_kv", 3), {"head_count_kv is 3"}},
           {gguf::number("llama.feed_forward_length", 321), {"ffn_gate.weight", "[321, 96]"}},
           {gguf::real("llama.attention.layer_norm_rms_epsilon",
                       std::numeric_limits<float>::quiet_NaN()),
            {"epsilon is nan"}},
           {gguf::real("llama.rope.freq_base", -1), {"freq_base is -1"}},
           {gguf::words("llama.rope.scaling.type", "linear"), {"scaling.factor is missing"}},
           {gguf::words("general.architecture", "\xff"), {"general.architecture", "UTF-8"}},
           {gguf::number("general.alignment", 0), {"general.alignment is 0"}},
           {gguf::number("general.alignment", 12), {"general.alignment is 12"}},
           {gguf::number("tokenizer.ggml.bos_token_id", 101), {"bos_token_id is 101", "0 to 100"}},
           {gguf::texts("tokenizer.ggml.tokens", {"a", "b"}),
            {"tokenizer.ggml.model is missing"}}}) {
    SCOPED_TRACE(one.value.key);
    gguf::File file = small();
    file.set(one.value);
    expect_error<FileError>([&] { Model::load(write(file)); }, begins(), one.says);
  }
  for (const char* key : {"general.architecture", "llama.context_length", "llama.embedding_length",
                          "llama.block_count", "llama.feed_forward_length",
                          "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon"}) {
    gguf::File file = small();
    file.erase(key);
    expect_refused<FileError>(file, {std::string(key) + " is missing"});
  }
}

TEST_F(Gguf, TokenizersThatCannotBeAreNamed) {
  const Json json = json_of(root / "models/needle-14m/tokenizer.json");
  gguf::File good = small();
  gguf::add_tokenizer(good, json, "qwen2");
  const auto expect = [&](const std::function<void(gguf::File&)>& change, auto error,
                          const std::vector<std::string_view>& says) {
    gguf::File file = good;
    change(file);
    const fs::path path = write(file);
    expect_error<decltype(error)>([&] { Tokenizer::load(path); }, begins(), says);
  };
  const FileError broken("");
  const Unsupported unknown("");
  expect([](auto& f) { f.set(gguf::words("tokenizer.ggml.model", "t5")); }, unknown,
         {"tokenizer.ggml.model is \"t5\"", "tokenizer.json"});
  expect([](auto& f) { f.set(gguf::words("tokenizer.ggml.pre", "kimi-k2")); }, unknown,
         {"tokenizer.ggml.pre is \"kimi-k2\"", "llama-bpe"});
  expect([](auto& f) { f.erase("tokenizer.ggml.pre"); }, broken,
         {"no tokenizer.ggml.pre", "convert"});
  expect([](auto& f) { f.erase("tokenizer.ggml.merges"); }, broken, {"merges is missing"});
  expect([](auto& f) { f.erase("tokenizer.ggml.token_type"); }, broken, {"token_type is missing"});
  expect([](auto& f) { f.set(gguf::integers("tokenizer.ggml.token_type", {1})); }, broken,
         {"token_type is an array of 1 int32s", "4096"});
  expect([](auto& f) { f.set(gguf::texts("tokenizer.ggml.merges", {"a"})); }, broken,
         {"merges[0]"});
  expect([](auto& f) { f.set(gguf::texts("tokenizer.ggml.merges", {"a \xff"})); }, broken,
         {"tokenizer.ggml.merges[0]", "UTF-8"});
  expect([](auto& f) { f.set(gguf::words("tokenizer.ggml.tokens", "a")); }, broken,
         {"tokens is \"a\"", "an array of texts"});
  expect([](auto& f) { f.set(gguf::flag("tokenizer.ggml.add_bos_token", true)); }, broken,
         {"bos_token_id is missing"});
  expect(
      [](auto& f) {
        f.set(gguf::flag("tokenizer.ggml.add_bos_token", true));
        f.set(gguf::number("tokenizer.ggml.bos_token_id", 4096));
      },
      broken, {"bos_token_id is 4096", "4095"});
  expect(
      [](auto& f) {
        f.set(gguf::texts("tokenizer.ggml.tokens", {"a", "a"}));
        f.set(gguf::integers("tokenizer.ggml.token_type", {1, 1}));
      },
      broken, {"tokens[1] is \"a\"", "[0]"});
}

TEST_F(Gguf, TensorsThatDoNotFitTheModelAreNamed) {
  const auto changed = [&](const char* name, const std::function<void(gguf::Tensor&)>& change) {
    gguf::File file = small();
    change(file.tensor(name));
    return file;
  };
  const char* up = "blk.1.ffn_up.weight";
  gguf::File missing = small();
  std::erase_if(missing.tensors, [&](const gguf::Tensor& t) { return t.name == up; });
  expect_weights_refused<FileError>(missing, {"has no tensor blk.1.ffn_up.weight", "[320, 96]"});
  // Of other networks.
  for (const char* other :
       {"blk.1.attn_output.bias", "blk.1.attn_q_norm.weight", "blk.1.ffn_up.bias",
        "blk.2.attn_norm.weight", "rope_factors_long.weight"}) {
    gguf::File file = small();
    gguf::Tensor more = file.tensor("output_norm.weight");
    more.name = other;
    file.tensors.push_back(more);
    expect_refused<Unsupported>(file, {other, "which topkv does not read"});
  }
  expect_weights_refused<FileError>(changed(up, [](auto& t) { std::swap(t.dims[0], t.dims[1]); }),
                                    {"ffn_up.weight has shape [96, 320]", "[320, 96]"});
  expect_weights_refused<FileError>(changed("output_norm.weight",
                                            [](auto& t) {
                                              t.dims = {48, 2};
                                            }),
                                    {"output_norm.weight has shape [2, 48]", "[96]"});
  expect_weights_refused<Unsupported>(changed("output_norm.weight", [](auto& t) { t.type = 8; }),
                                      {"output_norm.weight is of type q8_0"});
  expect_weights_refused<Unsupported>(changed(up, [](auto& t) { t.type = 26; }),
                                      {"ffn_up.weight is of type i32", "q4_0"});
  expect_refused<FileError>(changed("token_embd.weight", [](auto& t) { t.name = "other"; }),
                            {"no matrix token_embd.weight"});
  // Scales that are no numbers.
  gguf::File file = small();
  gguf::Tensor& tensor = file.tensor(up);
  tensor.type = 8;
  tensor.bytes.assign(320 * 3 * 34, '\0');
  tensor.bytes.replace(34, 2, "\x00\x7e", 2);
  write(file);
  expect_error<FileError>([&] { Model::load(temp_.path() / "model.gguf"); }, begins(),
                          {"ffn_up.weight has scale or offset nan at [0, 32]"});
  // Factors of RoPE.
  gguf::File rope = small();
  rope.tensors.push_back({"rope_freqs.weight", {40}, 0, std::string(160, '\0')});
  expect_refused<FileError>(rope, {"rope_freqs.weight has a factor 0"});
  rope.tensors.back() = {"rope_freqs.weight", {39}, 0, std::string(160, '\0')};
  expect_refused<FileError>(rope, {"rope_freqs.weight has shape [39]", "[40]"});
  rope.tensors.back() = {"rope_freqs.weight", {40}, 1, std::string(160, '\0')};
  expect_refused<FileError>(rope, {"rope_freqs.weight has type f16"});
}

TEST_F(Gguf, TensorsThatCannotBeAreNamed) {
  struct Case {
    std::function<void(gguf::Tensor&)> change;
    std::vector<std::string_view> says;
  };
  constexpr std::uint64_t huge = std::uint64_t{1} << 62;
  const std::vector<Case> cases = {
      {[](auto& t) { t.dims = {}; }, {"0 dimensions"}},
      {[](auto& t) {
         t.dims = {1, 1, 1, 1, 1};
       },
       {"5 dimensions", "1 to 4"}},
      {[](auto& t) {
         t.dims = {96, 0};
       },
       {"dimension 1 of 0"}},
      {[](auto& t) {
         t.dims = {huge, 8};
       },
       {"dimension 0 of 4611686018427387904"}},
      {[](auto& t) {
         t.dims = {~std::uint64_t{0}, 1};
       },
       {"dimension 0 of 18446744073709551615"}},
      {[](auto& t) {
         t.dims = {std::uint64_t{1} << 31, std::uint64_t{1} << 31};
       },
       {"dimension 1"}},
      {[](auto& t) {
         t.dims = {96, std::uint64_t{1} << 40};
       },
       {"bytes at", "cut off"}},
      {[](auto& t) { t.move = 1; }, {"begins at", "multiple of 32"}},
      {[](auto& t) { t.move = std::uint64_t{1} << 40; }, {"bytes at", "cut off"}},
      {[](auto& t) { t.move = ~std::uint64_t{0} - 31 - 122880 * 8; }, {"bytes at"}},
      {[](auto& t) { t.name = ""; }, {"the name of a tensor of 0 bytes"}},
      {[](auto& t) { t.name = "\xff"; }, {"the name of a tensor of 1 bytes", "UTF-8"}},
      {[](auto& t) { t.name = std::string(70000, 'x'); }, {"of 70000 bytes", "65535"}},
      {[](auto& t) { t.name = "output_norm.weight"; }, {"tensor output_norm.weight twice"}},
      {[](auto& t) {
         t.dims = {97, 320};
         t.type = 8;
       },
       {"q8_0", "rows of 97", "multiple of 32"}},
      {[](auto& t) { t.type = 12; }, {"q4_K", "rows of 96", "multiple of 256"}},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    gguf::File file = small();
    cases[i].change(file.tensor("blk.1.ffn_up.weight"));
    expect_refused<FileError>(file, cases[i].says);
  }
  for (const std::uint32_t type : {4U, 5U, 9U, 31U, 99U, 0xffffffffU}) {
    gguf::File file = small();
    file.tensor("blk.1.ffn_up.weight").type = type;
    expect_refused<Unsupported>(file, {"ggml's type " + std::to_string(type)});
  }
}

TEST_F(Gguf, HeadersThatCannotBeAreNamed) {
  using namespace gguf;
  const auto expect = [&](const std::function<void(gguf::File&)>& change,
                          const std::vector<std::string_view>& says) {
    gguf::File file = small();
    change(file);
    expect_refused<FileError>(file, says);
  };
  constexpr std::uint64_t huge = std::uint64_t{1} << 60;
  expect([&](auto& f) { f.more_values = huge; }, {"metadata values", "can hold"});
  expect([&](auto& f) { f.more_tensors = huge; }, {"tensors", "can hold"});
  expect([](auto& f) { f.more_tensors = 5; }, {"tensor"});
  expect([](auto& f) { f.values.push_back(f.values[0]); }, {"general.architecture twice"});
  expect([](auto& f) { f.set({"a", bytes(std::uint32_t{13})}); }, {"a is of type 13", "0 to 12"});
  expect([](auto& f) { f.set({"", bytes(u32) + bytes(1U)}); }, {"name of a metadata value of 0"});
  expect([](auto& f) { f.set({"a", bytes(string) + bytes(huge)}); }, {"ends within", "a"});
  expect([](auto& f) { f.set({"a", bytes(string) + bytes(~std::uint64_t{0})}); }, {"ends within"});
  expect(
      [](auto& f) {
        f.set({"a", bytes(gguf::array) + bytes(u8) + bytes(huge)});
      },
      {"an array of 1152921504606846976 elements"});
  expect(
      [](auto& f) {
        f.set({"a", bytes(gguf::array) + bytes(f64) + bytes(~std::uint64_t{0})});
      },
      {"an array of 18446744073709551615"});
  expect(
      [](auto& f) {
        f.set({"a", bytes(gguf::array) + bytes(string) + bytes(huge)});
      },
      {"elements"});
  expect(
      [](auto& f) {
        f.set({"a", bytes(gguf::array) + bytes(77U) + bytes(std::uint64_t{1})});
      },
      {"type 77"});
  const auto nested = [](int depth) {
    std::string content = bytes(gguf::array);
    for (int i = 0; i < depth; ++i) content += bytes(gguf::array) + bytes(std::uint64_t{1});
    return content + bytes(u8) + bytes(std::uint64_t{0});
  };
  expect([&](auto& f) { f.set({"a", nested(100000)}); }, {"arrays more than 4 deep"});
  gguf::File shallow = small();
  shallow.set({"a", nested(3)});
  EXPECT_NO_THROW(Model::load(write(shallow)));
  gguf::File wide = small();  // each counts for nothing in the file
  std::string content = bytes(gguf::array) + bytes(gguf::array) + bytes(std::uint64_t{9});
  for (int i = 0; i < 9; ++i) {
    content += bytes(u8) + bytes(std::uint64_t{1} << 20) + std::string(std::size_t{1} << 20, 'x');
  }
  wide.set({"a", content});
  expect_refused<FileError>(wide, {"arrays of more than 8388608 elements"});
}

TEST_F(Gguf, OtherFilesAndVersionsAreTold) {
  for (const std::uint32_t version : {0U, 1U, 4U, 0xffffffffU}) {
    gguf::File file = small();
    file.version = version;
    expect_refused<Unsupported>(file, {"GGUF version " + std::to_string(version), "2 and 3"});
  }
  gguf::File swapped = small();
  swapped.version = 0x03000000U;
  expect_refused<Unsupported>(swapped, {"big-endian"});
  gguf::File second = small();
  second.version = 2;
  EXPECT_NO_THROW(Model::load(write(second)));
  for (const char* content : {"", "GGU", "{}", "PK\x03\x04"})
    expect_bytes_refused<FileError>(content, {"not with the letters GGUF"});
  const fs::path missing = temp_.path() / "absent.gguf";
  expect_error<FileError>([&] { Model::load(missing); }, missing.string() + ": ",
                          {"no such directory", "GGUF"});
}

TEST_F(Gguf, FilesThatWereCutOffAreRefusedWhereverTheyEnd) {
  gguf::File file = small({.vocab = 800});
  gguf::add_tokenizer(file, json_of(root / "tests/fixtures/tokenizer/llama3.json"), "llama-bpe");
  const std::string whole = file.content();
  const std::size_t header = file.header().size();
  std::mt19937 random(3);
  for (int i = 0; i < 150; ++i) {
    const std::size_t most = i % 3 == 0 ? whole.size() - 32 : header;
    const std::size_t size = std::uniform_int_distribution<std::size_t>(0, most - 1)(random);
    write(whole.substr(0, size));
    expect_error<FileError>([&] { Model::load(temp_.path() / "model.gguf"); }, begins(), {});
  }
}

TEST_F(Gguf, DamagedHeadersLoadOrAreRefused) {
  gguf::File file = small({.vocab = 800});
  gguf::add_tokenizer(file, json_of(root / "tests/fixtures/tokenizer/llama3.json"), "llama-bpe");
  file.set(gguf::number("tokenizer.ggml.bos_token_id", 3));
  const std::string whole = file.content();
  const std::size_t header = file.header().size();
  std::mt19937 random(static_cast<unsigned>(testing::UnitTest::GetInstance()->random_seed()) + 1);
  int loaded = 0;
  for (int i = 0; i < 200; ++i) {
    std::string damaged = whole;
    for (int places = 0; places < 1 + i % 4; ++places) {
      const std::size_t at = std::uniform_int_distribution<std::size_t>(0, header - 1)(random);
      damaged[at] = static_cast<char>(random());
    }
    write(damaged);
    try {
      Model::load(temp_.path() / "model.gguf").logits(std::vector<Token>{5, 6});
      ++loaded;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(loaded, 0);
}

}  // namespace
}  // namespace topkv
