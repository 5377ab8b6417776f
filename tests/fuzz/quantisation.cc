// quantization_config of a config.json that is whole otherwise, and the plan of such weights.
#include "src/model/weights/quantisation.h"

#include <nlohmann/json.hpp>

#include "src/core/format/json_file.h"
#include "src/model/weights/quantisation_keys.h"
#include "tests/fuzz/target.h"

namespace fuzz = topkv::fuzz;

FUZZ_TARGET(quantisation)(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const auto file = folder.write("config.json", std::string(R"({"model_type": "llama",
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 100, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": false,
    "quantization_config": )")
                                                        .append(fuzz::text_of(data, size)) +
                                                    "}");
  const bool taken = fuzz::accepts(
      [&] {
        const auto how = topkv::Quantisation::load(folder.path());
        const auto warning = topkv::unread_quantisation_warning(topkv::read_json_file(file), file);
        fuzz::require(warning.find('\n') == warning.npos, "a warning of several lines", warning);
        fuzz::require(how.text().size() < 200, "a long name");
      },
      folder.text());
  if (!taken) return 0;
  fuzz::accepts([&] { topkv::Model::plan(folder.path(), {}, {}, {}); }, folder.text());
  return 0;
}
