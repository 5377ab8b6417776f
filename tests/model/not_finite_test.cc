// Weights that are NaN or infinite are named by file, tensor and place, when they are loaded or
// once they have made what the network computes no number.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/gguf_writer.h"
#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinite = std::numeric_limits<float>::infinity();

class NotFinite : public testing::Test {
 protected:
  /// A checkpoint in two shards, of which one element is another value.
  void write(const std::string& name, std::int64_t element, float value) {
    FileTensors first = tensors_;
    std::memcpy(first.at(name).bytes.data() + 4 * element, &value, 4);
    FileTensors second;
    for (auto it = first.begin(); it != first.end();) {
      const bool moves = it->first.starts_with("model.layers.1.");
      if (moves) second.insert(*it);
      it = moves ? first.erase(it) : std::next(it);
    }
    nlohmann::json places;
    for (const auto& [tensor, content] : first) places[tensor] = "first.safetensors";
    for (const auto& [tensor, content] : second) places[tensor] = "second.safetensors";
    temp_.write("first.safetensors", file_of(first));
    temp_.write("second.safetensors", file_of(second));
    temp_.write("model.safetensors.index.json", nlohmann::json{{"weight_map", places}}.dump());
    temp_.write("config.json", config_of({}).dump());
  }

  std::string file(const char* name) const { return (temp_.path() / name).string() + ": "; }

  const FileTensors tensors_ = random_tensors({});
  const std::vector<Token> tokens_ = {5, 9, 11, 4, 30, 7};
  TempDirectory temp_;
};

TEST_F(NotFinite, AMatrixIsNamedOnceItHasMadeAValueNoNumber) {
  write("model.layers.1.self_attn.v_proj.weight", 7 * 96 + 5, nan);
  const Model model = Model::load(temp_.path());
  const std::vector<std::string_view> says = {
      "tensor model.layers.1.self_attn.v_proj.weight has nan at [7, 5]", "finite",
      "fetch it again"};
  const std::string begins = file("second.safetensors");
  expect_error<FileError>([&] { model.prefill(tokens_); }, begins, says);
  expect_error<FileError>([&] { model.logits(tokens_); }, begins, says);

  write("model.layers.0.mlp.up_proj.weight", 3, infinite);
  const Model other = Model::load(temp_.path());
  expect_error<FileError>([&] { other.prefill(tokens_); }, file("first.safetensors"),
                          {"tensor model.layers.0.mlp.up_proj.weight has inf at [0, 3]"});
}

// Nothing behind it is attended.
TEST_F(NotFinite, OneOfTheLastProductsIsNamedInsteadOfAnAnswer) {
  for (const char* name : {"model.layers.1.mlp.down_proj.weight", "lm_head.weight"}) {
    SCOPED_TRACE(name);
    write(name, 0, nan);
    const Model model = Model::load(temp_.path());
    const auto context = model.prefill(tokens_);
    for (const double temperature : {0.0, 1.0}) {
      Session session(context);
      const GenerateOptions options{.max_tokens = 2, .sampling = {.temperature = temperature}};
      expect_error<FileError>([&] { model.generate(session, tokens_, options); },
                              temp_.path().string(), {name, "has nan at [0, 0]"});
      EXPECT_EQ(session.own_tokens(), 0);
    }
  }
}

TEST_F(NotFinite, ANormIsNamedWhenItIsLoaded) {
  write("model.layers.1.input_layernorm.weight", 17, -infinite);
  const auto expect = [&](const auto& call) {
    expect_error<FileError>(call, file("second.safetensors"),
                            {"tensor model.layers.1.input_layernorm.weight has -inf at [17]"});
  };
  expect([&] { Model::load(temp_.path()); });
  expect([&] { Model::plan(temp_.path(), {}, {}, {}); });
}

TEST_F(NotFinite, RoundingNamesTheShard) {
  write("model.layers.1.mlp.gate_proj.weight", 2 * 96, nan);
  expect_error<FileError>(
      [&] { Model::load(temp_.path(), {}, {}, {.weights = WeightFormat::int8}); },
      file("second.safetensors"), {"tensor model.layers.1.mlp.gate_proj.weight has nan at [2, 0]"});
}

TEST_F(NotFinite, ATensorOfAGgufFileIsNamed) {
  FileTensors tensors = tensors_;
  std::memcpy(tensors.at("model.layers.0.mlp.up_proj.weight").bytes.data() + 4 * 98, &nan, 4);
  const auto path = temp_.write("model.gguf", gguf::llama(config_of({}), tensors).content());
  const Model model = Model::load(path);
  expect_error<FileError>([&] { model.prefill(tokens_); }, path.string() + ": ",
                          {"tensor blk.0.ffn_up.weight has nan at [1, 2]"});
}

// The caller's own mistake is told as that.
TEST_F(NotFinite, FiniteWeightsAreNotBlamed) {
  write("lm_head.weight", 0, 1);
  const Model model = Model::load(temp_.path());
  const auto attend = [](const AttentionStep&) { throw InvalidArgument("of the caller"); };
  expect_error<InvalidArgument>([&] { model.logits(tokens_, 0, attend); }, "of the caller", {});
}

}  // namespace
}  // namespace topkv
