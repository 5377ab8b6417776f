// Models with mixtures of experts whose weights are rounded while they are loaded or quantised
// already, in the memory that was planned; and what is wrong with a checkpoint, in one line.
// (That they compute what transformers does: parity_test.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "src/model/weights/weights.h"
#include "tests/support/packed_case.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/memory_plan.h"
#include "topkv/model.h"

namespace topkv {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

fs::path experts_fixture(const std::string& name) {
  return fs::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity" / name;
}

std::vector<Token> text(std::int64_t tokens) {
  std::vector<Token> all;
  for (std::int64_t i = 0; i < tokens; ++i) all.push_back(static_cast<Token>(3 + i * 31 % 90));
  return all;
}

/// The worst difference, relative to the largest number wanted.
double error_of(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(double{want[i]}));
    const double off = std::abs(double{got[i]} - want[i]);
    if (!(off <= worst)) worst = off;
  }
  return worst / largest;
}

/// Experts of a checkpoint in float32 with experts of `count` inputs that int4 takes.
class RoundedExperts : public testing::Test {
 protected:
  static constexpr std::int64_t hidden = 64, width = 96, experts = 5, layers = 2;

  /// Random weights of everything but the experts.
  static FileTensors others(bool biases) {
    FileTensors tensors = random_tensors({.hidden = hidden, .mlp = width, .head = 64});
    std::erase_if(tensors,
                  [](const auto& entry) { return entry.first.find(".mlp.") != std::string::npos; });
    for (const std::string at : {"model.layers.0.", "model.layers.1."}) {
      const std::string router = at + (biases ? "mlp.router." : "block_sparse_moe.gate.");
      add(tensors, router + "weight", {experts, hidden}, 1);
      if (!biases) continue;
      add(tensors, router + "bias", {experts}, 2);
      add(tensors, at + "self_attn.sinks", {2}, 3);
      add(tensors, at + "self_attn.q_proj.bias", {128}, 4);
      add(tensors, at + "self_attn.k_proj.bias", {64}, 5);
      add(tensors, at + "self_attn.v_proj.bias", {64}, 6);
      add(tensors, at + "self_attn.o_proj.bias", {hidden}, 7);
    }
    return tensors;
  }
  static std::vector<double> random(std::int64_t count, unsigned seed) {
    std::mt19937 source(seed);
    std::normal_distribution<double> normal;
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& x : values) x = normal(source) / 8;
    return values;
  }
  static void add(FileTensors& tensors, const std::string& name,
                  const std::vector<std::int64_t>& shape, unsigned seed) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    seed += static_cast<unsigned>(std::hash<std::string>{}(name) % 1000);
    tensors[name] = {"F32", shape, bytes_of_floats(random(count, seed))};
  }
  static Json config(const char* type) {
    Json json = {{"model_type", type},
                 {"hidden_size", hidden},
                 {"intermediate_size", width},
                 {"num_hidden_layers", layers},
                 {"num_attention_heads", 2},
                 {"num_key_value_heads", 1},
                 {"head_dim", 64},
                 {"vocab_size", 101},
                 {"max_position_embeddings", 512},
                 {"num_local_experts", experts},
                 {"num_experts_per_tok", 2},
                 {"tie_word_embeddings", false}};
    if (std::string(type) == "gpt_oss") {
      json["rope_scaling"] = {{"rope_type", "default"}};
      json["sliding_window"] = 16;
    }
    return json;
  }
  void write(const FileTensors& tensors, const Json& config) const {
    temp_.write("model.safetensors", file_of(tensors));
    temp_.write("config.json", config.dump());
  }
  Weights rounded(WeightFormat format) const {
    const auto file = Checkpoint::open(temp_.path());
    return Weights::load(*file, ModelConfig::load(temp_.path()), *host_device(),
                         {.weights = format});
  }
  /// The matrix of an expert as what was made of it.
  static std::vector<double> values(const ExpertMatrices& matrices, std::int64_t expert) {
    EXPECT_TRUE(matrices.form.packed());
    EXPECT_EQ(matrices.count(), experts);
    return packed_case::values_of(matrices.of(expert));
  }
  void put_others(FileTensors& tensors, const Weights& weights) const {
    const auto put = [&](const std::string& name, const Matrix& matrix) {
      tensors[name].bytes = bytes_of_floats(packed_case::values_of(matrix));
    };
    put("model.embed_tokens.weight", weights.embedding);
    put("lm_head.weight", weights.lm_head);
    for (std::int64_t l = 0; l < layers; ++l) {
      const LayerWeights& layer = weights.layers[static_cast<std::size_t>(l)];
      const std::string at = "model.layers." + std::to_string(l) + ".self_attn.";
      put(at + "q_proj.weight", layer.q);
      put(at + "k_proj.weight", layer.k);
      put(at + "v_proj.weight", layer.v);
      put(at + "o_proj.weight", layer.o);
      EXPECT_FALSE(layer.mixture.router.packed()) << "routers are not rounded";
    }
  }
  /// A prefill, which sorts by expert, and steps of one token, which do not.
  static std::vector<float> all_logits(const Model& model) {
    const auto tokens = text(40);
    auto all = model.logits(tokens);
    const auto context = model.prefill(std::span(tokens).first(36), {.kv_dtype = DType::f32});
    Session session(context, {.k = TopK::same(1000)});
    for (std::size_t i = 36; i < tokens.size(); ++i) {
      const auto one = model.logits(session, std::span(tokens).subspan(i, 1));
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  void expect_logits_of(const FileTensors& tensors, const Json& json, WeightFormat format) {
    const auto got = all_logits(Model::load(temp_.path(), {}, {}, {.weights = format}));
    const auto before = all_logits(Model::load(temp_.path()));
    write(tensors, json);
    const auto want = all_logits(Model::load(temp_.path()));
    EXPECT_LE(error_of(got, want), 2e-5);
    EXPECT_GE(error_of(before, want), 1e-3) << "rounding changed nothing";
  }

  TempDirectory temp_;
};

TEST_F(RoundedExperts, OneByOneComputeWhatTheirRoundedWeightsDo) {
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::int4}) {
    SCOPED_TRACE(name_of(format));
    FileTensors tensors = others(false);
    const auto name = [](std::int64_t l, std::int64_t e, const char* part) {
      return "model.layers." + std::to_string(l) + ".block_sparse_moe.experts." +
             std::to_string(e) + "." + part + ".weight";
    };
    for (std::int64_t l = 0; l < layers; ++l) {
      for (std::int64_t e = 0; e < experts; ++e) {
        add(tensors, name(l, e, "w1"), {width, hidden}, 1);
        add(tensors, name(l, e, "w3"), {width, hidden}, 2);
        add(tensors, name(l, e, "w2"), {hidden, width}, 3);
      }
    }
    write(tensors, config("mixtral"));
    const Weights weights = rounded(format);
    put_others(tensors, weights);
    for (std::int64_t l = 0; l < layers; ++l) {
      const MixtureWeights& mixture = weights.layers[static_cast<std::size_t>(l)].mixture;
      for (std::int64_t e = 0; e < experts; ++e) {
        tensors[name(l, e, "w1")].bytes = bytes_of_floats(values(mixture.gate, e));
        tensors[name(l, e, "w3")].bytes = bytes_of_floats(values(mixture.up, e));
        tensors[name(l, e, "w2")].bytes = bytes_of_floats(values(mixture.down, e));
      }
    }
    expect_logits_of(tensors, config("mixtral"), format);
  }
}

TEST_F(RoundedExperts, OfOneTensorComputeWhatTheirRoundedWeightsDo) {
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::int4}) {
    SCOPED_TRACE(name_of(format));
    FileTensors tensors = others(true);
    const auto name = [](std::int64_t l, const char* part) {
      return "model.layers." + std::to_string(l) + ".mlp.experts." + part;
    };
    for (std::int64_t l = 0; l < layers; ++l) {
      add(tensors, name(l, "gate_up_proj"), {experts, hidden, 2 * width}, 1);
      add(tensors, name(l, "gate_up_proj_bias"), {experts, 2 * width}, 2);
      add(tensors, name(l, "down_proj"), {experts, width, hidden}, 3);
      add(tensors, name(l, "down_proj_bias"), {experts, hidden}, 4);
    }
    write(tensors, config("gpt_oss"));
    const Weights weights = rounded(format);
    put_others(tensors, weights);
    for (std::int64_t l = 0; l < layers; ++l) {
      const MixtureWeights& mixture = weights.layers[static_cast<std::size_t>(l)].mixture;
      std::vector<double> gate_up(static_cast<std::size_t>(experts * hidden * 2 * width));
      std::vector<double> down(static_cast<std::size_t>(experts * width * hidden));
      for (std::int64_t e = 0; e < experts; ++e) {
        const auto gate_of = values(mixture.gate, e);
        const auto up_of = values(mixture.up, e);
        const auto down_of = values(mixture.down, e);
        for (std::int64_t o = 0; o < width; ++o) {
          for (std::int64_t i = 0; i < hidden; ++i) {
            const std::int64_t at = (e * hidden + i) * 2 * width + 2 * o;
            gate_up[at] = gate_of[o * hidden + i];
            gate_up[at + 1] = up_of[o * hidden + i];
            down[(e * width + o) * hidden + i] = down_of[i * width + o];
          }
        }
      }
      tensors[name(l, "gate_up_proj")].bytes = bytes_of_floats(gate_up);
      tensors[name(l, "down_proj")].bytes = bytes_of_floats(down);
    }
    expect_logits_of(tensors, config("gpt_oss"), format);
  }
}

// Experts take 2,048 tokens of a chunk at a time here; steps choose less often than there are
// experts.
TEST(Experts, ALongChunkGivesWhatShortOnesAndStepsDo) {
  for (const char* name : {"mixtral", "qwen3-moe", "gpt-oss"}) {
    SCOPED_TRACE(name);
    const Model model = Model::load(experts_fixture(name));
    const auto tokens = text(2500);
    constexpr std::size_t last = 4;
    const auto all = model.logits(tokens);
    const std::vector<float> want(
        all.end() - last * static_cast<std::size_t>(model.config().vocab_size), all.end());
    const auto first = std::span(tokens).first(tokens.size() - last);
    const auto context = model.prefill(first, {.chunk = 700, .kv_dtype = DType::f32});
    Session session(context, {.k = TopK::same(1 << 20)});
    std::vector<float> got;
    for (std::size_t i = first.size(); i < tokens.size(); ++i) {
      const auto one = model.logits(session, std::span(tokens).subspan(i, 1));
      got.insert(got.end(), one.begin(), one.end());
    }
    EXPECT_LE(error_of(got, want), 2e-5);
  }
}

class ExpertCheckpoints : public testing::Test {
 protected:
  /// The fixture's checkpoint, changed.
  template <class Change>
  fs::path changed(const std::string& name, const Change& change) const {
    FileTensors tensors = read_tensors(experts_fixture(name) / "model.safetensors");
    change(tensors);
    temp_.write("config.json", read_file(experts_fixture(name) / "config.json"));
    return temp_.write("model.safetensors", file_of(tensors)).parent_path();
  }
  template <class E, class Change>
  void expect_refused(const std::string& name, const Change& change,
                      const std::vector<std::string_view>& says,
                      WeightFormat weights = WeightFormat::stored) const {
    const fs::path path = changed(name, change);
    expect_error<E>([&] { Model::load(path, {}, {}, {.weights = weights}); }, path.string(), says);
    expect_error<E>([&] { Model::plan(path, {}, {}, {}, weights); }, path.string(), says);
  }
  TempDirectory temp_;
};

TEST_F(ExpertCheckpoints, WhatIsMissingOrOfAnotherShapeIsNamed) {
  const std::string at = "model.layers.0.mlp.";
  expect_refused<FileError>("qwen3-moe",
                            [&](FileTensors& t) { t.erase(at + "experts.4.up_proj.weight"); },
                            {"has no tensor", "experts.4.up_proj.weight", "[32, 32]"});
  expect_refused<FileError>("qwen3-moe", [&](FileTensors& t) { t.erase(at + "gate.weight"); },
                            {"has no tensor", "mlp.gate.weight", "[6, 32]"});
  expect_refused<FileError>("qwen3-moe",
                            [&](FileTensors& t) {
                              t[at + "experts.5.down_proj.weight"].shape = {16, 64};
                            },
                            {"experts.5.down_proj.weight", "has shape [16, 64]", "[32, 32]"});
  expect_refused<Unsupported>(
      "qwen3-moe", [&](FileTensors& t) { t[at + "experts.2.gate_proj.weight"].dtype = "F16"; },
      {"experts or heads of one layer differ", "number 2"});
  expect_refused<FileError>("gpt-oss",
                            [&](FileTensors& t) { t.erase("model.layers.1.self_attn.sinks"); },
                            {"has no tensor", "self_attn.sinks"});
  expect_refused<FileError>("gpt-oss",
                            [&](FileTensors& t) { t.erase(at + "experts.down_proj_bias"); },
                            {"has no tensor", "down_proj_bias", "[4, 40]"});
  expect_refused<FileError>("gpt-oss",
                            [&](FileTensors& t) {
                              t[at + "experts.gate_up_proj"].shape = {4, 48, 40};
                            },
                            {"gate_up_proj", "has shape [4, 48, 40]", "[4, 40, 48]"});
}

TEST_F(ExpertCheckpoints, WhatIsWrongWithMxfp4IsNamed) {
  const std::string at = "model.layers.1.mlp.experts.";
  expect_refused<FileError>("mxfp4-gpt-oss",
                            [&](FileTensors& t) { t.erase(at + "down_proj_blocks"); },
                            {"has no tensor", "down_proj_blocks"});
  expect_refused<FileError>("mxfp4-gpt-oss",
                            [&](FileTensors& t) {
                              t[at + "down_proj_scales"].shape = {4, 1, 64};
                            },
                            {"down_proj_scales", "has shape [4, 1, 64]"});
  expect_refused<FileError>("mxfp4-gpt-oss",
                            [&](FileTensors& t) { t[at + "gate_up_proj_blocks"].dtype = "I8"; },
                            {"gate_up_proj_blocks", "has dtype I8", "U8"});
  expect_refused<Unsupported>(
      "mxfp4-gpt-oss", [](FileTensors&) {}, {"quantised already (mxfp4", "int8"},
      WeightFormat::int8);
  // What only the values show.
  const fs::path path = changed(
      "mxfp4-gpt-oss", [&](FileTensors& t) { t[at + "gate_up_proj_scales"].bytes[5] = '\xff'; });
  expect_error<FileError>([&] { Model::load(path); }, path.string(),
                          {"gate_up_proj_scales", "has 255 at [0, 2, 1]", "226 at most"});
}

TEST_F(ExpertCheckpoints, Int4NamesTheExpertThatItCannotHold) {
  const fs::path path = changed("mixtral", [](FileTensors&) {});
  expect_error<Unsupported>([&] { Model::load(path, {}, {}, {.weights = WeightFormat::int4}); },
                            path.string(), {"experts.0.w2.weight", "40 inputs", "32"});
}

TEST_F(ExpertCheckpoints, PlansCountAllExpertsAndReadThoseOfAToken) {
  struct Case {
    const char* name;
    std::int64_t experts, per_token, expert_bytes, layers;
  };
  // In bf16; MXFP4 in 5 bits with its scale, rows of 16 bytes at least, blocks of 256.
  for (const Case& c :
       {Case{"qwen3-moe", 6, 2, 3 * 32 * 32 * 2, 2}, Case{"mixtral", 4, 2, 3 * 40 * 32 * 2, 2},
        Case{"gpt-oss", 4, 2, 3 * 40 * 24 * 2, 2}}) {
    SCOPED_TRACE(c.name);
    const DevicePlan whole = Model::plan(experts_fixture(c.name), {}, {}, {});
    const auto bytes =
        static_cast<std::int64_t>(fs::file_size(experts_fixture(c.name) / "model.safetensors"));
    EXPECT_LE(whole.weights_bytes, bytes);
    EXPECT_GE(whole.weights_bytes, bytes * 9 / 10);  // the header
    const auto plans = memory_plans(
        experts_fixture(c.name),
        {.tokens = 64, .memory = 1LL << 30, .weights = WeightFormat::stored, .index = "exact"});
    const MemoryPlan& plan = plans.front();
    const ModelConfig config = ModelConfig::load(experts_fixture(c.name));
    const std::int64_t embedding =
        config.tied_embeddings ? 0 : config.vocab_size * config.hidden_size * 2;
    const std::int64_t idle = c.layers * (c.experts - c.per_token) * c.expert_bytes;
    std::int64_t keys = 0;  // exact search reads those of layers that have no window
    for (std::int64_t l = 0; l < config.attention.layers; ++l)
      keys += config.attention.window_of(l) == 0 ? config.attention.kv_heads * 64 * 64 * 2 : 0;
    EXPECT_EQ(plan.host.reads, whole.weights_bytes - embedding - idle + keys);
  }
}

}  // namespace
}  // namespace topkv
