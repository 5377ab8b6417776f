#include "src/model/families/gguf_architecture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <vector>

namespace topkv {
namespace {

constexpr std::array<GgufName, 9> projections = {{{"self_attn.q_proj", "attn_q"},
                                                  {"self_attn.k_proj", "attn_k"},
                                                  {"self_attn.v_proj", "attn_v"},
                                                  {"self_attn.qkv_proj", gguf_qkv},
                                                  {"self_attn.o_proj", "attn_output"},
                                                  {"mlp.gate_proj", "ffn_gate"},
                                                  {"mlp.up_proj", "ffn_up"},
                                                  {"mlp.gate_up_proj", "ffn_up"},
                                                  {"mlp.down_proj", "ffn_down"}}};

constexpr std::array<GgufName, 6> latent_projections = {
    {{"self_attn.q_a_proj", "attn_q_a"},
     {"self_attn.q_b_proj", "attn_q_b"},
     {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
     {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
     {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
     {"mlp.shared_experts.down_proj", "ffn_down_shexp"}}};

constexpr std::array<std::string_view, 3> expert_names = {"ffn_gate_exps", "ffn_up_exps",
                                                          "ffn_down_exps"};

constexpr std::array<GgufName, 2> norms = {
    {{"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"}}};
constexpr std::array<GgufName, 4> latent_norms = {{{"input_layernorm", "attn_norm"},
                                                   {"self_attn.q_a_layernorm", "attn_q_a_norm"},
                                                   {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
                                                   {"post_attention_layernorm", "ffn_norm"}}};
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

constexpr std::array<GgufName, 12> gemma4_norms = {
    {{"input_layernorm", "attn_norm"},
     {"self_attn.q_norm", "attn_q_norm"},
     {"self_attn.k_norm", "attn_k_norm"},
     {"post_attention_layernorm", "post_attention_norm"},
     {"pre_feedforward_layernorm", "ffn_norm"},
     {"post_feedforward_layernorm", "post_ffw_norm"},
     {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
     {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
     {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
     {"per_layer_input_gate", "inp_gate"},
     {"per_layer_projection", "proj"},
     {"post_per_layer_input_norm", "post_norm"}}};
constexpr std::array<GgufName, 3> gemma4_scales = {
    {{"layer_scalar", "layer_output_scale.weight"},
     {"router.scale", "ffn_gate_inp.scale"},
     {"router.per_expert_scale", "ffn_down_exps.scale"}}};
constexpr std::array<GgufName, 4> gemma2_norms = {
    {{"input_layernorm", "attn_norm"},
     {"post_attention_layernorm", "post_attention_norm"},
     {"pre_feedforward_layernorm", "ffn_norm"},
     {"post_feedforward_layernorm", "post_ffw_norm"}}};
constexpr std::array<GgufName, 4> glm4_norms = {
    {{"input_layernorm", "attn_norm"},
     {"post_self_attn_layernorm", "post_attention_norm"},
     {"post_attention_layernorm", "ffn_norm"},
     {"post_mlp_layernorm", "post_ffw_norm"}}};
constexpr std::array<GgufName, 4> olmo2_norms = {
    {{"self_attn.q_norm", "attn_q_norm"},
     {"self_attn.k_norm", "attn_k_norm"},
     {"post_attention_layernorm", "post_attention_norm"},
     {"post_feedforward_layernorm", "post_ffw_norm"}}};
constexpr std::array<GgufName, 2> gpt_oss_norms = {
    {{"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "post_attention_norm"}}};

constexpr std::array<GgufName, 4> hybrid_norms = {
    {{"input_layernorm", "attn_norm"},
     {"self_attn.q_norm", "attn_q_norm"},
     {"self_attn.k_norm", "attn_k_norm"},
     {"post_attention_layernorm", "post_attention_norm"}}};

constexpr std::array<GgufName, 4> shared_expert = {
    {{"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
     {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
     {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
     {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"}}};

constexpr std::array<GgufName, 11> delta = {{{"linear_attn.in_proj_qkv.weight", "attn_qkv.weight"},
                                             {"linear_attn.in_proj_z.weight", "attn_gate.weight"},
                                             {"linear_attn.in_proj_qkvz.weight", gguf_fused_delta},
                                             {"linear_attn.in_proj_b.weight", "ssm_beta.weight"},
                                             {"linear_attn.in_proj_a.weight", "ssm_alpha.weight"},
                                             {"linear_attn.in_proj_ba.weight", "ssm_ba.weight"},
                                             {"linear_attn.conv1d.weight", "ssm_conv1d.weight"},
                                             {"linear_attn.A_log", "ssm_a"},  // -exp of it
                                             {"linear_attn.dt_bias", "ssm_dt.bias"},
                                             {"linear_attn.norm.weight", "ssm_norm.weight"},
                                             {"linear_attn.out_proj.weight", "ssm_out.weight"}}};

constexpr std::array<GgufName, 4> lfm2_norms = {{{"operator_norm", "attn_norm"},
                                                 {"self_attn.q_layernorm", "attn_q_norm"},
                                                 {"self_attn.k_layernorm", "attn_k_norm"},
                                                 {"ffn_norm", "ffn_norm"}}};
constexpr std::array<GgufName, 7> lfm2_parts = {
    {{"self_attn.out_proj.weight", "attn_output.weight"},
     {"feed_forward.w1.weight", "ffn_gate.weight"},
     {"feed_forward.w3.weight", "ffn_up.weight"},
     {"feed_forward.w2.weight", "ffn_down.weight"},
     {"conv.in_proj.weight", "shortconv.in_proj.weight"},
     {"conv.conv.weight", "shortconv.conv.weight"},
     {"conv.out_proj.weight", "shortconv.out_proj.weight"}}};

// shared_mlp.input_linear has gate and up, which are two tensors here.
constexpr std::array<GgufName, 9> granite_parts = {
    {{"shared_mlp.output_linear.weight", "ffn_down.weight"},
     {"mamba.in_proj.weight", "ssm_in.weight"},
     {"mamba.conv1d.weight", "ssm_conv1d.weight"},
     {"mamba.conv1d.bias", "ssm_conv1d.bias"},
     {"mamba.A_log", "ssm_a"},  // -exp of it
     {"mamba.dt_bias", "ssm_dt.bias"},
     {"mamba.D", "ssm_d"},
     {"mamba.norm.weight", "ssm_norm.weight"},
     {"mamba.out_proj.weight", "ssm_out.weight"}}};

constexpr std::array<GgufName, 1> nemotron_norms = {{{"norm", "attn_norm"}}};
constexpr std::array<GgufName, 16> nemotron_parts = {
    {{"mixer.q_proj.weight", "attn_q.weight"},
     {"mixer.k_proj.weight", "attn_k.weight"},
     {"mixer.v_proj.weight", "attn_v.weight"},
     {"mixer.o_proj.weight", "attn_output.weight"},
     {"mixer.up_proj.weight", "ffn_up.weight"},
     {"mixer.down_proj.weight", "ffn_down.weight"},
     {"mixer.shared_experts.up_proj.weight", "ffn_up_shexp.weight"},
     {"mixer.shared_experts.down_proj.weight", "ffn_down_shexp.weight"},
     {"mixer.in_proj.weight", "ssm_in.weight"},
     {"mixer.conv1d.weight", "ssm_conv1d.weight"},
     {"mixer.conv1d.bias", "ssm_conv1d.bias"},
     {"mixer.A_log", "ssm_a"},  // -exp of it
     {"mixer.dt_bias", "ssm_dt.bias"},
     {"mixer.D", "ssm_d"},
     {"mixer.norm.weight", "ssm_norm.weight"},
     {"mixer.out_proj.weight", "ssm_out.weight"}}};

constexpr std::array<GgufArchitecture, 27> architectures = {
    {{.name = "deepseek2",
      .model_type = "deepseek_v2",
      .experts = true,
      .interleaved = true,
      .norms = latent_norms},
     {.name = "deepseek2",
      .model_type = "deepseek_v3",
      .experts = true,
      .interleaved = true,
      .norms = latent_norms,
      .sigmoid = true},
     {.name = "llama",
      .model_type = "llama",
      .experts = false,
      .interleaved = true,
      .norms = norms},
     {.name = "llama",
      .model_type = "mixtral",
      .experts = true,
      .interleaved = true,
      .norms = norms},
     {.name = "qwen2",
      .model_type = "qwen2",
      .experts = false,
      .interleaved = false,
      .norms = norms},
     {.name = "qwen3",
      .model_type = "qwen3",
      .experts = false,
      .interleaved = false,
      .norms = qwen3_norms},
     {.name = "qwen3moe",
      .model_type = "qwen3_moe",
      .experts = true,
      .interleaved = false,
      .norms = qwen3_norms},
     {.name = "gpt-oss",
      .model_type = "gpt_oss",
      .experts = true,
      .interleaved = false,
      .norms = gpt_oss_norms,
      .yarn_truncates = false},
     {.name = "mistral3",
      .model_type = "ministral3",
      .experts = false,
      .interleaved = true,
      .norms = norms},
     {.name = "smollm3",
      .model_type = "smollm3",
      .experts = false,
      .interleaved = true,
      .norms = norms},
     {.name = "phi3", .model_type = "phi3", .experts = false, .interleaved = false, .norms = norms},
     {.name = "glm4",
      .model_type = "glm4",
      .experts = false,
      .interleaved = true,
      .norms = glm4_norms},
     {.name = "olmo2",
      .model_type = "olmo2",
      .experts = false,
      .interleaved = false,
      .norms = olmo2_norms},
     {.name = "gemma2",
      .model_type = "gemma2",
      .experts = false,
      .interleaved = false,
      .norms = gemma2_norms,
      .layers_scaled_by_width = 46,  // Gemma 2 27B
      .window = 4096},
     {
         .name = "gemma3",
         .model_type = "gemma3_text",
         .experts = false,
         .interleaved = false,
         .norms = gemma3_norms,
         .layers_scaled_by_width = 62  // Gemma 3 27B
     },
     {.name = "gemma4",
      .model_type = "gemma4_text",
      .experts = false,
      .interleaved = false,
      .norms = gemma4_norms,
      .scales = gemma4_scales},
     {.name = "gemma4",
      .model_type = "gemma4_text",
      .experts = true,
      .interleaved = false,
      .norms = gemma4_norms,
      .scales = gemma4_scales},
     {.name = "qwen35",
      .model_type = "qwen3_5",
      .experts = false,
      .interleaved = false,
      .norms = hybrid_norms,
      .tiled_values = true},
     {.name = "qwen35moe",
      .model_type = "qwen3_5_moe",
      .experts = true,
      .interleaved = false,
      .norms = hybrid_norms,
      .tiled_values = true},
     {.name = "qwen3next",
      .model_type = "qwen3_next",
      .experts = true,
      .interleaved = false,
      .norms = hybrid_norms},
     {.name = "lfm2",
      .model_type = "lfm2",
      .experts = false,
      .interleaved = false,
      .norms = lfm2_norms,
      .parts = lfm2_parts},
     {.name = "lfm2moe",
      .model_type = "lfm2_moe",
      .experts = true,
      .interleaved = false,
      .norms = lfm2_norms,
      .parts = lfm2_parts,
      .sigmoid = true},
     {.name = "granite",
      .model_type = "granite",
      .experts = false,
      .interleaved = true,
      .norms = norms},
     {.name = "granitehybrid",
      .model_type = "granitemoehybrid",
      .experts = false,
      .interleaved = true,
      .norms = norms,
      .parts = granite_parts},
     {.name = "granitehybrid",
      .model_type = "granitemoehybrid",
      .experts = true,
      .interleaved = true,
      .norms = norms,
      .parts = granite_parts},
     {.name = "nemotron_h",
      .model_type = "nemotron_h",
      .experts = false,
      .interleaved = false,
      .norms = nemotron_norms,
      .parts = nemotron_parts},
     {.name = "nemotron_h_moe",
      .model_type = "nemotron_h",
      .experts = true,
      .interleaved = false,
      .norms = nemotron_norms,
      .parts = nemotron_parts,
      .sigmoid = true}}};

/// Whether routers score by sigmoids. Files of GLM-4.7-Flash do not say so, but have a bias for the
/// choice, which routers with a softmax do not have.
bool scores_by_sigmoids(const GgufFile& file, std::string_view architecture) {
  constexpr std::int64_t sigmoids = 2;  // as llama.cpp numbers them
  const std::string key = fmt::format("{}.expert_gating_func", architecture);
  if (const std::int64_t function = file.integer(key, 0, INT32_MAX, 0); function != 0)
    return function == sigmoids;
  return std::ranges::any_of(file.tensors(), [](const auto& tensor) {
    return std::string_view(tensor.first).ends_with(gguf_choice_bias);
  });
}

}  // namespace

std::span<const GgufName> gguf_projections() { return projections; }

std::span<const GgufName> gguf_latent_projections() { return latent_projections; }

std::span<const std::string_view> gguf_experts() { return expert_names; }

std::span<const GgufName> gguf_shared_expert() { return shared_expert; }

std::span<const GgufName> gguf_delta() { return delta; }

std::string gguf_expert(std::string_view projection, std::int64_t expert) {
  return fmt::format("{}.{}", projection, expert);
}

const GgufArchitecture& architecture_of(const GgufFile& file) {
  constexpr const char* key = "general.architecture";
  const std::string name = file.text(key);
  const std::string experts_key = name + ".expert_count";
  const bool experts = file.integer(experts_key, 0, INT64_MAX, 0) > 0;
  std::vector<std::string_view> names;
  bool is_known = false;
  const GgufArchitecture* of_kind = nullptr;  // the last with experts, or without
  for (const GgufArchitecture& known : architectures) {
    if (known.name == name && known.experts == experts) {
      of_kind = &known;
      if (known.sigmoid == scores_by_sigmoids(file, name)) return known;
    }
    is_known = is_known || known.name == name;
    if (names.empty() || names.back() != known.name) names.push_back(known.name);
  }
  if (of_kind != nullptr) return *of_kind;
  if (is_known && experts) file.unsupported(experts_key, fmt::format("dense models of {}", name));
  if (is_known) file.fail(experts_key, fmt::format("1 or more experts in {}", name));
  file.unsupported(
      key, fmt::format("{} in GGUF files, and other families in a directory with safetensors",
                       fmt::join(names, ", ")));
}

GgufBlocks blocks_of(const GgufFile& file, const GgufArchitecture& architecture) {
  constexpr std::int64_t most_layers = 1000;
  const std::string prefix = std::string(architecture.name) + ".";
  GgufBlocks blocks;
  blocks.layers = file.integer(prefix + "block_count", 1, most_layers);
  const Family& family = architecture.family();
  if (family.delta.key_heads == 0 && !(family.parts_apart && architecture.experts)) return blocks;
  blocks.drafts = file.integer(prefix + "nextn_predict_layers", 0, blocks.layers - 1, 0);
  blocks.layers -= blocks.drafts;
  return blocks;
}

std::optional<std::int64_t> block_of(std::string_view tensor) {
  constexpr std::string_view block = "blk.";
  if (!tensor.starts_with(block)) return {};
  const std::size_t dot = tensor.find('.', block.size());
  if (dot == tensor.npos) return {};
  const std::string_view number = tensor.substr(block.size(), dot - block.size());
  std::int64_t found = -1;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), found);
  if (error != std::errc() || found < 0 || number != fmt::to_string(found)) return {};
  return found;
}

}  // namespace topkv
