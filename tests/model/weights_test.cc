// Models whose weights are rounded to 8 or 4 bits while they are loaded: they compute what the same
// model computes whose float weights are the rounded ones, near what the model itself computes, in
// the memory that was planned.
#include "src/model/weights/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/packed_case.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace topkv {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path bundled_weights = fs::path(TOPKV_SOURCE_DIR) / "models/needle-14m";

class RoundedWeights : public testing::Test {
 protected:
  void write(const FileTensors& tensors, const Json& config) const {
    temp_.write("model.safetensors", file_of(tensors));
    temp_.write("config.json", config.dump());
  }

  fs::path path() const { return temp_.path(); }

  /// The same tensors with each matrix as the packed one that was made of it.
  static FileTensors rounded(const fs::path& directory, WeightFormat format,
                             const FileTensors& tensors) {
    ModelConfig config = ModelConfig::load(directory);
    const auto file = Checkpoint::open(directory);
    Weights::settle_tie(*file, config);
    const Weights weights = Weights::load(*file, config, *host_device(), {.weights = format});
    FileTensors out = tensors;
    const auto put = [&](const std::string& name, const Matrix& matrix) {
      EXPECT_TRUE(matrix.packed()) << name;
      out[name] = {"F32", tensors.at(name).shape, bytes_of_floats(packed_case::values_of(matrix))};
    };
    put("model.embed_tokens.weight", weights.embedding);
    if (!config.tied_embeddings) put("lm_head.weight", weights.lm_head);
    for (std::size_t l = 0; l < weights.layers.size(); ++l) {
      const std::string at = "model.layers." + std::to_string(l) + ".";
      const LayerWeights& layer = weights.layers[l];
      put(at + "self_attn.q_proj.weight", layer.q);
      put(at + "self_attn.k_proj.weight", layer.k);
      put(at + "self_attn.v_proj.weight", layer.v);
      put(at + "self_attn.o_proj.weight", layer.o);
      put(at + "mlp.gate_proj.weight", layer.gate);
      put(at + "mlp.up_proj.weight", layer.up);
      put(at + "mlp.down_proj.weight", layer.down);
    }
    return out;
  }

  TempDirectory temp_;
};

TEST_F(RoundedWeights, LogitsAreThoseOfTheModelWithTheRoundedWeightsInFloat) {
  for (const WeightFormat format : {WeightFormat::int8, WeightFormat::int4}) {
    // Groups of 32 (96 and 160), 64 (320), and of needle-14m 128.
    for (const bool small : {true, false}) {
      SCOPED_TRACE(std::string(name_of(format)) + (small ? ", random weights" : ", needle-14m"));
      const Sizes sizes;
      const FileTensors tensors =
          small ? random_tensors(sizes) : read_tensors(bundled_weights / "model.safetensors");
      if (small) write(tensors, config_of(sizes));
      const fs::path from = small ? path() : bundled_weights;
      const FileTensors floats = rounded(from, format, tensors);
      const Model packed = Model::load(from, {}, {}, {.weights = format});
      EXPECT_EQ(packed.weights(), format);
      const auto tokens = some_tokens(40, packed.config().vocab_size);
      TempDirectory other;
      other.write("model.safetensors", file_of(floats));
      other.write("config.json", read_file(from / "config.json"));
      const Model plain = Model::load(other.path());
      EXPECT_EQ(plain.weights(), WeightFormat::stored);
      expect_same(logits_both_ways(packed, tokens), logits_both_ways(plain, tokens));
    }
  }
}

/// Mean KL divergence of the next token's distributions over a text.
double divergence(const std::vector<float>& want, const std::vector<float>& got,
                  std::int64_t vocab) {
  double total = 0;
  const std::int64_t tokens = static_cast<std::int64_t>(want.size()) / vocab;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto log_sum = [&](const std::vector<float>& logits) {
      double high = -std::numeric_limits<double>::infinity();
      for (std::int64_t i = 0; i < vocab; ++i) high = std::max(high, double{logits[t * vocab + i]});
      double sum = 0;
      for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(logits[t * vocab + i] - high);
      return high + std::log(sum);
    };
    const double a = log_sum(want);
    const double b = log_sum(got);
    for (std::int64_t i = 0; i < vocab; ++i) {
      const double p = want[t * vocab + i] - a;
      total += std::exp(p) * (p - (got[t * vocab + i] - b));
    }
  }
  return total / static_cast<double>(tokens);
}

// Measured: 0.002 for int8, 0.3 for int4 (a model of 14 million parameters has none to spare); the
// bounds leave room for another text, not for a wrong scale.
TEST_F(RoundedWeights, NextTokensAreNearlyThoseOfTheModelItself) {
  const Model model = Model::load(bundled_weights);
  const auto text = model.tokenizer().encode(read_file(bundled_weights / "README.md"));
  const std::vector<Token> tokens(text.begin(), text.begin() + 512);
  const auto want = model.logits(tokens);
  const auto of = [&](WeightFormat format) {
    const double kl =
        divergence(want, Model::load(bundled_weights, {}, {}, {.weights = format}).logits(tokens),
                   model.config().vocab_size);
    RecordProperty(std::string("kl_") + std::string(name_of(format)), std::to_string(kl));
    return kl;
  };
  EXPECT_LT(of(WeightFormat::int8), 0.005);
  EXPECT_LT(of(WeightFormat::int4), 0.6);
}

TEST_F(RoundedWeights, PlanCountsWhatTheyTake) {
  const Sizes sizes;
  write(random_tensors(sizes), config_of(sizes));
  const auto planned = [&](WeightFormat format) {
    return Model::plan(path(), {}, {}, {}, format).weights_bytes;
  };
  // Outputs and inputs of the matrices, as the checkpoint has them.
  struct Shape {
    std::int64_t out, in;
  };
  const std::vector<Shape> layer = {{160, 96}, {80, 96},  {80, 96}, {96, 160},
                                    {320, 96}, {320, 96}, {96, 320}};
  const std::vector<Shape> tables = {{101, 96}, {101, 96}};
  const auto up = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const auto int8 = [&](const Shape& of) { return up(of.out * of.in) + up(of.out * 4 + 64); };
  const auto int4 = [&](const Shape& of) {
    const std::int64_t groups = of.in / (of.in % 128 == 0 ? 128 : of.in % 64 == 0 ? 64 : 32);
    return up(of.out * of.in / 2) + 2 * up(of.out * groups * 4 + 64);
  };
  std::int64_t stored = 5 * 96 * 4;  // norms
  std::int64_t eight = stored;
  std::int64_t four = stored;
  for (const Shape& of : tables) {
    stored += of.out * of.in * 4;
    eight += int8(of);
    four += int8(of);
  }
  for (const Shape& of : layer) {
    stored += 2 * of.out * of.in * 4;
    eight += 2 * int8(of);
    four += 2 * int4(of);
  }
  EXPECT_EQ(planned(WeightFormat::stored), stored);
  EXPECT_EQ(planned(WeightFormat::int8), eight);
  EXPECT_EQ(planned(WeightFormat::int4), four);
}

TEST_F(RoundedWeights, ProgressIsToldUpToWhatWasPlanned) {
  std::vector<Progress> told;
  Model::load(
      bundled_weights, {}, {},
      {.weights = WeightFormat::int4, .progress = [&](const Progress& of) { told.push_back(of); }});
  ASSERT_FALSE(told.empty());
  const std::int64_t total =
      Model::plan(bundled_weights, {}, {}, {}, WeightFormat::int4).weights_bytes;
  std::int64_t before = 0;
  for (const Progress& of : told) {
    EXPECT_EQ(of.stage, "weights");
    EXPECT_EQ(of.unit, "bytes");
    EXPECT_EQ(of.total, total);
    EXPECT_GE(of.done, before);
    before = of.done;
  }
  EXPECT_EQ(before, total);
  EXPECT_THROW(
      Model::load(bundled_weights, {}, {},
                  {.weights = WeightFormat::int4, .progress = [](const Progress&) { throw 7; }}),
      int);
}

TEST_F(RoundedWeights, InputsThatInt4CannotGroupAreRefusedAndInt8TakesThem) {
  const Sizes odd{.hidden = 48, .mlp = 83, .vocab = 37, .head = 10};
  write(random_tensors(odd), config_of(odd));
  const std::string beginning = (path() / "model.safetensors").string() + ": ";
  for (const auto& call :
       {std::function<void()>(
            [&] { Model::load(path(), {}, {}, {.weights = WeightFormat::int4}); }),
        std::function<void()>([&] { Model::plan(path(), {}, {}, {}, WeightFormat::int4); })}) {
    expect_error<Unsupported>(call, beginning,
                              {"q_proj.weight has 48 inputs", "multiple of 32", "int8"});
  }
  const auto tokens = some_tokens(9, odd.vocab);
  TempDirectory other;
  other.write("model.safetensors",
              file_of(rounded(path(), WeightFormat::int8, random_tensors(odd))));
  other.write("config.json", config_of(odd).dump());
  expect_same(Model::load(path(), {}, {}, {.weights = WeightFormat::int8}).logits(tokens),
              Model::load(other.path()).logits(tokens));
}

TEST_F(RoundedWeights, WeightsThatCannotBeRoundedAreNamed) {
  const Sizes sizes;
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(), 1e16F}) {
    FileTensors tensors = random_tensors(sizes);
    const std::string name = "model.layers.1.mlp.down_proj.weight";
    std::memcpy(tensors[name].bytes.data() + 4 * (7 * 320 + 5), &wrong, 4);
    write(tensors, config_of(sizes));
    for (const WeightFormat format : {WeightFormat::int8, WeightFormat::int4}) {
      expect_error<FileError>([&] { Model::load(path(), {}, {}, {.weights = format}); },
                              (path() / "model.safetensors").string() + ": ",
                              {name, "[7, 5]", "finite"});
    }
    EXPECT_NO_THROW(Model::load(path()));
  }
}

TEST(WeightFormatNames, AreReadAsTheyAreWritten) {
  for (const auto format : {WeightFormat::stored, WeightFormat::int8, WeightFormat::int4})
    EXPECT_EQ(parse_weight_format(name_of(format)), format);
  EXPECT_THROW(parse_weight_format("int5"), InvalidArgument);
}

}  // namespace
}  // namespace topkv
