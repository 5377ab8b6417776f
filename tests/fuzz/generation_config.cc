// generation_config.json beside a model's configuration.
#include "tests/fuzz/target.h"
#include "topkv/model.h"

namespace fuzz = topkv::fuzz;

FUZZ_TARGET(generation_config)(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  [[maybe_unused]] static const auto config = folder.write("config.json", R"({"model_type": "llama",
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 100, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": false})");
  folder.write("generation_config.json", fuzz::text_of(data, size));
  fuzz::accepts([&] { topkv::ModelConfig::load(folder.path()); }, folder.text());
  return 0;
}
