// Checkpoints as they come: weights under other names, output layers that are tied or not, files
// cut short, things that are no files, paths of any bytes.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/temp_directory.h"
#include "tests/support/tensor_file.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path fixtures = fs::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity";

using Tensor = FileTensor;
using Tensors = FileTensors;

class Checkpoint : public testing::Test {
 protected:
  /// Puts a changed copy of a fixture's checkpoint into the directory.
  void make(const char* fixture, const std::function<void(Tensors&)>& change,
            const Json& config_changes = Json::object()) {
    Tensors tensors = read_tensors(fixtures / fixture / "model.safetensors");
    if (change) change(tensors);
    temp_.write("model.safetensors", file_of(tensors));
    Json config = Json::parse(read_file(fixtures / fixture / "config.json"));
    config.update(config_changes);
    temp_.write("config.json", config.dump());
  }

  Model load() {
    warnings_.clear();
    return Model::load(temp_.path(), {},
                       [&](const std::string& warning) { warnings_.push_back(warning); });
  }

  fs::path path(const char* name) const { return temp_.path() / name; }

  TempDirectory temp_;
  std::vector<std::string> warnings_;
  std::vector<Token> tokens_ = {5, 9, 11, 4, 30, 7, 5, 9};
};

void rename_all(Tensors& tensors, const std::function<std::string(const std::string&)>& rename) {
  Tensors renamed;
  for (auto& [name, tensor] : tensors) renamed[rename(name)] = std::move(tensor);
  tensors = std::move(renamed);
}

std::string without_model(const std::string& name) {
  return name.starts_with("model.") ? name.substr(6) : name;
}

TEST_F(Checkpoint, WeightsOfTheBaseModelAreThoseOfTheModel) {
  for (const char* fixture : {"llama2", "llama-tied-bias", "qwen3"}) {
    SCOPED_TRACE(fixture);
    const std::vector<float> wanted = Model::load(fixtures / fixture).logits(tokens_);
    make(fixture, [](Tensors& tensors) { rename_all(tensors, without_model); });
    EXPECT_EQ(load().logits(tokens_), wanted);
    make(fixture, [](Tensors& tensors) {
      rename_all(tensors, [](const std::string& name) { return "model." + name; });
    });
    EXPECT_EQ(load().logits(tokens_), wanted);
    EXPECT_TRUE(warnings_.empty());
  }
}

TEST_F(Checkpoint, BaseModelWhoseOutputLayerIsMissingIsRefusedWithAWord) {
  make("llama2", [](Tensors& tensors) {
    tensors.erase("lm_head.weight");
    rename_all(tensors, without_model);
  });
  expect_error<FileError>([&] { load(); }, path("model.safetensors").string() + ": ",
                          {"lm_head.weight", "the output layer is missing", "tie_word_embeddings"});
  expect_error<FileError>([&] { Model::plan(temp_.path(), {}, {}, {}); },
                          path("model.safetensors").string() + ": ", {"lm_head.weight"});
}

TEST_F(Checkpoint, AWeightUnderTwoNamesIsRefused) {
  make("llama2", [](Tensors& tensors) { tensors["norm.weight"] = tensors["model.norm.weight"]; });
  expect_error<FileError>([&] { load(); }, path("model.safetensors").string() + ": ",
                          {"model.norm.weight", " norm.weight", "the same weight"});
}

TEST_F(Checkpoint, TiedOutputLayerThatDiffersIsUsedAndTold) {
  const auto differing = [](Tensors& tensors) {
    Tensor& head = tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
    std::rotate(head.bytes.begin(), head.bytes.begin() + 2, head.bytes.end());
  };
  make("llama-tied-bias", differing, {{"tie_word_embeddings", false}});
  const Model untied = load();
  EXPECT_TRUE(warnings_.empty());
  const std::vector<float> wanted = untied.logits(tokens_);
  EXPECT_NE(wanted, Model::load(fixtures / "llama-tied-bias").logits(tokens_));

  make("llama-tied-bias", differing);
  const Model model = load();
  EXPECT_EQ(model.logits(tokens_), wanted);
  EXPECT_FALSE(model.config().tied_embeddings);
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_NE(warnings_[0].find("lm_head.weight differ"), std::string::npos) << warnings_[0];
  EXPECT_TRUE(warnings_[0].starts_with(path("model.safetensors").string() + ": "));
  EXPECT_EQ(Model::load(temp_.path()).logits(tokens_), wanted);  // nobody to be told
}

TEST_F(Checkpoint, TensorsThatNothingReadsAreTold) {
  make("llama-tied-bias", [](Tensors& tensors) {
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = tensors["model.norm.weight"];
    Tensor& bias = tensors["unused.bias"] = tensors["model.norm.weight"];
    std::ranges::fill(bias.bytes, '\0');
  });
  load();
  EXPECT_TRUE(warnings_.empty());  // it follows from config.json, and adds nothing

  make("llama-tied-bias", [](Tensors& tensors) {
    for (const char* name : {"b", "a", "d", "c", "e"}) tensors[name] = tensors["model.norm.weight"];
  });
  load();
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_NE(warnings_[0].find("5 tensors are not used: a, b, c and 2 more"), std::string::npos)
      << warnings_[0];

  // Biases that config.json does not speak of would change every answer.
  make("llama-tied-bias", [](Tensors&) {}, {{"attention_bias", false}});
  load();
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_NE(warnings_[0].find("self_attn.k_proj.bias"), std::string::npos) << warnings_[0];
}

TEST_F(Checkpoint, TiedOutputLayerThatDiffersInItsLastElementIsNoticed) {
  make("llama-tied-bias", [](Tensors& tensors) {
    Tensor& head = tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
    head.bytes.back() = static_cast<char>(head.bytes.back() ^ 1);
  });
  load();
  EXPECT_EQ(warnings_.size(), 1U);
}

TEST_F(Checkpoint, TiedOutputLayerWithTheSameValuesIsTied) {
  const std::vector<float> wanted = Model::load(fixtures / "llama-tied-bias").logits(tokens_);
  make("llama-tied-bias",
       [](Tensors& tensors) { tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]; });
  EXPECT_EQ(load().logits(tokens_), wanted);
  EXPECT_TRUE(load().config().tied_embeddings);
  // The same values in another type: bfloat16 is the upper half of float32.
  make("llama-tied-bias", [](Tensors& tensors) {
    Tensor& head = tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
    ASSERT_EQ(head.dtype, "BF16");
    std::string wide;
    for (std::size_t i = 0; i < head.bytes.size(); i += 2) {
      wide += std::string(2, '\0') + head.bytes.substr(i, 2);
    }
    head.dtype = "F32";
    head.bytes = wide;
  });
  EXPECT_EQ(load().logits(tokens_), wanted);
  EXPECT_TRUE(load().config().tied_embeddings);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(Checkpoint, TiedEmbeddingMayBeThereAsTheOutputLayerAlone) {
  const std::vector<float> wanted = Model::load(fixtures / "llama-tied-bias").logits(tokens_);
  make("llama-tied-bias", [](Tensors& tensors) {
    auto embedding = tensors.extract("model.embed_tokens.weight");
    embedding.key() = "lm_head.weight";
    tensors.insert(std::move(embedding));
  });
  EXPECT_EQ(load().logits(tokens_), wanted);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(Checkpoint, PlanKnowsAnOutputLayerOfItsOwn) {
  make("llama-tied-bias", {});
  const std::int64_t tied = Model::plan(temp_.path(), {}, {}, {}).weights_bytes;
  std::int64_t head = 0;
  make("llama-tied-bias", [&](Tensors& tensors) {
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
    head = static_cast<std::int64_t>(tensors["lm_head.weight"].bytes.size());
    tensors["lm_head.weight"].bytes[0] ^= 1;
  });
  EXPECT_EQ(Model::plan(temp_.path(), {}, {}, {}).weights_bytes, tied + head);
}

TEST_F(Checkpoint, WarningsOfTheConfigurationAreTold) {
  make("llama2", {}, {{"attention_magic", 3}});
  load();
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_NE(warnings_[0].find("attention_magic is 3"), std::string::npos);
}

TEST_F(Checkpoint, WhoThrowsOnAWarningEndsTheLoad) {
  make("llama2", {}, {{"attention_magic", 3}});
  EXPECT_THROW(Model::load(temp_.path(), {}, [](const std::string&) { throw 7; }), int);
}

/// Texts longer than the model was made for.
class Reach : public Checkpoint {
 protected:
  Reach() { make("llama2", {}, {{"max_position_embeddings", 6}}); }
  static bool has_both(const std::string& warning, const char* tokens) {
    return warning.find(tokens) == 0 && warning.find(" 6 positions") != std::string::npos;
  }
};

TEST_F(Reach, PrefillBeyondItIsToldOnce) {
  const Model model = load();
  const std::vector<Token> six(tokens_.begin(), tokens_.begin() + 6);
  const std::vector<Token> seven(tokens_.begin(), tokens_.begin() + 7);
  model.prefill(six);
  model.logits(six);
  EXPECT_TRUE(warnings_.empty());
  model.prefill(seven);
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_TRUE(has_both(warnings_[0], "7 tokens")) << warnings_[0];
  model.prefill(tokens_);
  model.logits(tokens_);
  EXPECT_EQ(warnings_.size(), 1U);
}

TEST_F(Reach, LogitsBeyondItAreTold) {
  load().logits(tokens_);
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_TRUE(has_both(warnings_[0], "8 tokens")) << warnings_[0];
}

TEST_F(Reach, LogitsOfASessionBeyondItAreTold) {
  const Model model = load();
  Session session(model.prefill(std::vector<Token>{5, 9, 11, 4}));
  model.logits(session, std::vector<Token>{1, 2});
  EXPECT_TRUE(warnings_.empty());
  model.logits(session, std::vector<Token>{1});
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_TRUE(has_both(warnings_[0], "7 tokens")) << warnings_[0];
}

TEST_F(Reach, PromptBeyondItIsTold) {
  const Model model = load();
  Session session(model.prefill(std::vector<Token>{5, 9, 11, 4}));
  model.generate(session, std::vector<Token>{1, 2, 3}, {.max_tokens = 0});
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_TRUE(has_both(warnings_[0], "7 tokens")) << warnings_[0];
}

TEST_F(Reach, GenerationIsToldWhenItGetsThereAndNotBefore) {
  make("llama2", {}, {{"max_position_embeddings", 6}, {"eos_token_id", nullptr}});
  const Model model = load();
  Session session(model.prefill(std::vector<Token>{5, 9, 11, 4}));
  std::size_t told_at = 0;
  std::int64_t generated = 0;
  model.generate(session, std::vector<Token>{1}, {.max_tokens = 5}, [&](Token) {
    ++generated;
    if (!warnings_.empty() && told_at == 0) told_at = static_cast<std::size_t>(generated);
    return true;
  });
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_TRUE(has_both(warnings_[0], "7 tokens")) << warnings_[0];
  EXPECT_EQ(told_at, 3U);  // the third comes from a step at position 6

  const Model fresh = load();
  Session within(fresh.prefill(std::vector<Token>{5, 9, 11, 4}));
  fresh.generate(within, std::vector<Token>{1}, {.max_tokens = 2});
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(Reach, BundledModelRunsItsMillionTokensAndAQuestionWithoutAWord) {
  const ModelConfig config = ModelConfig::load(fs::path(TOPKV_SOURCE_DIR) / "models/needle-14m");
  EXPECT_EQ(config.beyond_reach(1048576 + 512), "");
  EXPECT_TRUE(config.warnings.empty());
}

TEST_F(Checkpoint, WeightsCutShortAreRefusedByPlanAndLoad) {
  make("llama2", {});
  const std::string whole = read_file(path("model.safetensors"));
  for (const std::size_t size :
       {whole.size() - 1, whole.size() / 2, std::size_t{100}, std::size_t{7}, std::size_t{0}}) {
    temp_.write("model.safetensors", whole.substr(0, size));
    const std::string beginning = path("model.safetensors").string() + ": ";
    expect_error<FileError>([&] { load(); }, beginning, {});
    expect_error<FileError>([&] { Model::plan(temp_.path(), {}, {}, {}); }, beginning, {});
  }
}

TEST_F(Checkpoint, WhatIsNoRegularFileIsRefusedByName) {
  struct Kind {
    const char* says;
    std::function<void(const fs::path&)> make;
  };
  const std::vector<Kind> kinds = {
      {"symbolic links", [](const fs::path& at) { fs::create_symlink(at.filename(), at); }},
      {"not a regular file", [](const fs::path& at) { fs::create_directory(at); }},
      {"not a regular file", [](const fs::path& at) { ASSERT_EQ(::mkfifo(at.c_str(), 0600), 0); }},
      {"not a regular file", [](const fs::path& at) { fs::create_symlink("/dev/zero", at); }}};
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}) {
    for (const Kind& kind : kinds) {
      SCOPED_TRACE(std::string(name) + ": " + kind.says);
      make("llama2", {});
      fs::remove(path(name));
      kind.make(path(name));
      expect_error<FileError>([&] { load(); }, path(name).string() + ": ", {kind.says});
      fs::remove(path(name));
    }
  }
}

TEST_F(Checkpoint, PathsOfAnyBytesAreShownOnOneLineOfText) {
  const fs::path odd = temp_.path() / "a\xFF\nb\xC3\xA9\x1b[2J";
  fs::create_directory(odd);
  const std::string shown = temp_.path().string() + "/a\\xff\\x0ab\xC3\xA9\\x1b[2J/";
  expect_error<FileError>([&] { Model::load(odd); }, shown.substr(0, shown.size() - 1) + ": ",
                          {"has no config.json"});
  make("llama2", {});
  fs::copy(path("config.json"), odd / "config.json");
  expect_error<FileError>([&] { Model::load(odd); }, shown.substr(0, shown.size() - 1) + ": ",
                          {"has neither model.safetensors"});
  fs::copy(path("model.safetensors"), odd / "model.safetensors");
  EXPECT_EQ(Model::load(odd).logits(tokens_), load().logits(tokens_));
  expect_error<FileError>([&] { Model::load(odd).tokenizer(); }, shown.substr(0, shown.size() - 1),
                          {"no tokenizer.json"});
  std::ofstream(odd / "tokenizer.json") << "{\"model\": \xFF}";
  expect_error<FileError>([&] { Model::load(odd); },
                          shown + "tokenizer.json: ", {"not valid JSON"});
  std::ofstream(odd / "tokenizer.json") << "{}";
  expect_error<Unsupported>([&] { Model::load(odd); },
                            shown + "tokenizer.json: ", {"pre_tokenizer"});
  std::ofstream(odd / "model.safetensors") << "cut";
  expect_error<FileError>([&] { Model::load(odd); }, shown + "model.safetensors: ", {});
}

}  // namespace
}  // namespace topkv
