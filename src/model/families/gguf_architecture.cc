#include "src/model/families/gguf_architecture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace topkv {
namespace {

constexpr std::array<GgufName, 7> projections = {{{"self_attn.q_proj", "attn_q"},
                                                  {"self_attn.k_proj", "attn_k"},
                                                  {"self_attn.v_proj", "attn_v"},
                                                  {"self_attn.o_proj", "attn_output"},
                                                  {"mlp.gate_proj", "ffn_gate"},
                                                  {"mlp.up_proj", "ffn_up"},
                                                  {"mlp.down_proj", "ffn_down"}}};

constexpr std::array<GgufName, 2> norms = {
    {{"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"}}};
constexpr std::array<GgufName, 4> qwen3_norms = {{{"input_layernorm", "attn_norm"},
                                                  {"self_attn.q_norm", "attn_q_norm"},
                                                  {"self_attn.k_norm", "attn_k_norm"},
                                                  {"post_attention_layernorm", "ffn_norm"}}};
constexpr std::array<GgufName, 6> gemma3_norms = {
    {{"input_layernorm", "attn_norm"},
     {"self_attn.q_norm", "attn_q_norm"},
     {"self_attn.k_norm", "attn_k_norm"},
     {"post_attention_layernorm", "post_attention_norm"},
     {"pre_feedforward_layernorm", "ffn_norm"},
     {"post_feedforward_layernorm", "post_ffw_norm"}}};

constexpr std::array<GgufArchitecture, 4> architectures = {
    {{"llama", "llama", true, norms},
     {"qwen2", "qwen2", false, norms},
     {"qwen3", "qwen3", false, qwen3_norms},
     {"gemma3", "gemma3_text", false, gemma3_norms, 62}}};  // 62 layers: Gemma 3 27B

}  // namespace

std::span<const GgufName> gguf_projections() { return projections; }

const GgufArchitecture& architecture_of(const GgufFile& file) {
  constexpr const char* key = "general.architecture";
  const std::string name = file.text(key);
  const auto* const found = std::ranges::find(architectures, name, &GgufArchitecture::name);
  if (found != architectures.end()) return *found;
  std::vector<std::string_view> names;
  for (const GgufArchitecture& known : architectures) names.push_back(known.name);
  file.unsupported(
      key, fmt::format("{} in GGUF files, and other families in a directory with safetensors",
                       fmt::join(names, ", ")));
}

}  // namespace topkv
