// The text model of a checkpoint that reads pictures too, as makers publish it: its config.json is
// within another, its tensors have further names in front, and the other parts are left out.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/small_llama.h"
#include "tests/support/temp_directory.h"
#include "tests/support/tensor_file.h"
#include "topkv/model.h"

namespace topkv {
namespace {

struct Published {
  std::string fixture;     // of the text model
  std::string model_type;  // of the whole
  std::string base;        // what "model." becomes
  std::string head;        // what "lm_head." becomes
  std::vector<std::string> others;
};
void PrintTo(const Published& one, std::ostream* out) { *out << one.fixture << " " << one.base; }

class TextPart : public testing::TestWithParam<Published> {};

TEST_P(TextPart, GivesTheLogitsOfTheTextModel) {
  const Published& whole = GetParam();
  const auto fixture =
      std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity" / whole.fixture;
  auto text = nlohmann::json::parse(read_file(fixture / "config.json"));
  nlohmann::json config = {{"architectures", {"ForConditionalGeneration"}},
                           {"model_type", whole.model_type},
                           {"vision_config", {{"depth", 2}}}};
  config["tie_word_embeddings"] = text["tie_word_embeddings"];
  text.erase("tie_word_embeddings");
  text.erase("architectures");
  config["text_config"] = text;

  FileTensors renamed;
  for (auto& [name, tensor] : read_tensors(fixture / "model.safetensors")) {
    const bool inner = name.starts_with("model.");
    renamed[inner ? whole.base + name.substr(6) : whole.head + name.substr(8)] = tensor;
  }
  for (const std::string& name : whole.others)
    renamed[name] = {"BF16", {32}, std::string(64, '\0')};

  const TempDirectory temp;
  temp.write("config.json", config.dump());
  temp.write("model.safetensors", file_of(renamed));
  std::vector<std::string> warnings;
  const Model model =
      Model::load(temp.path(), {}, [&](const std::string& line) { warnings.push_back(line); });
  EXPECT_EQ(warnings, std::vector<std::string>());
  const auto tokens = some_tokens(40, model.config().vocab_size);
  EXPECT_EQ(model.logits(tokens), Model::load(fixture).logits(tokens));
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoints, TextPart,
    testing::Values(Published{"qwen3-5",
                              "qwen3_5",
                              "model.language_model.",
                              "lm_head.",
                              {"model.visual.blocks.0.norm1.weight", "mtp.norm.weight"}},
                    Published{"gemma4-unified", "gemma4_unified", "model.language_model.",
                              "lm_head.",
                              {"model.embed_vision.embedding_projection.weight",
                               "model.embed_audio.embedding_projection.weight"}},
                    Published{"gemma4-shared",
                              "gemma4",
                              "model.language_model.",
                              "lm_head.",
                              {"model.vision_tower.std_scale", "model.audio_tower.norm.weight",
                               "model.embed_vision.embedding_projection.weight",
                               "model.embed_audio.embedding_projection.weight",
                               "model.language_model.layers.6.self_attn.k_proj.weight",
                               "model.language_model.layers.6.self_attn.v_proj.weight",
                               "model.language_model.layers.6.self_attn.k_norm.weight"}},
                    Published{"ministral3",
                              "mistral3",
                              "language_model.model.",
                              "language_model.lm_head.",
                              {"vision_tower.ln_pre.weight", "multi_modal_projector.norm.weight"}},
                    Published{"ministral3",
                              "mistral3",
                              "model.language_model.",
                              "lm_head.",
                              {"model.vision_tower.ln_pre.weight",
                               "model.multi_modal_projector.norm.weight"}}));

}  // namespace
}  // namespace topkv
