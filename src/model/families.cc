#include "src/model/families.h"

#include <algorithm>
#include <array>

namespace topkv {

// Defaults are those of transformers 5: config classes of the same names.
std::span<const Family> families() {
  using Sliding = Family::Sliding;
  static const std::array<Family, 4> all = {{
      {.name = "llama",
       .vocab_size = 32000,
       .intermediate_size = 11008,
       .max_position = 2048,
       .bos = 1,
       .eos = {2},
       .reads_attention_bias = true,
       .reads_mlp_bias = true,
       .own_keys = {"attention_bias", "mlp_bias"}},
      {.name = "mistral",
       .vocab_size = 32000,
       .intermediate_size = 14336,
       .kv_heads = 8,
       .max_position = 131072,
       .bos = 1,
       .eos = {2},
       .sliding = Sliding::all_layers,
       .window = 4096,
       .own_keys = {"sliding_window"}},
      {.name = "qwen2",
       .vocab_size = 151936,
       .intermediate_size = 22016,
       .kv_heads = 32,
       .max_position = 32768,
       .always_qkv_bias = true,
       .sliding = Sliding::last_layers,
       .window = 4096,
       .own_keys = {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}},
      {.name = "qwen3",
       .vocab_size = 151936,
       .intermediate_size = 22016,
       .kv_heads = 32,
       .head_dim = 128,
       .max_position = 32768,
       .reads_attention_bias = true,
       .sliding = Sliding::last_layers,
       .window = 4096,
       .qk_norm = true,
       .own_keys = {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types",
                    "attention_bias"}},
  }};
  return all;
}

const Family* find_family(std::string_view model_type) {
  const auto all = families();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Family& f) { return f.name == model_type; });
  return found == all.end() ? nullptr : &*found;
}

const Family& family_of(const ModelConfig& config) { return *find_family(config.model_type); }

}  // namespace topkv
