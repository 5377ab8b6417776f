#include "src/model/weights/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "src/core/math/convert.h"
#include "src/core/text/printable.h"
#include "src/model/families/families.h"
#include "src/model/weights/draft_layer_config.h"
#include "src/model/weights/weight_placer.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Rows of a matrix as float32, wherever they are.
void rows_of(const MatrixSource& source, std::int64_t first, std::int64_t rows,
             std::vector<float>& out) {
  const Matrix& form = source.form;
  out.resize(static_cast<std::size_t>(rows * form.in_features));
  to_float(form.data + first * form.row_bytes(), form.dtype, rows * form.in_features, out.data());
}

bool same_values(const MatrixSource& a, const MatrixSource& b) {
  if (a.form.packed() || b.form.packed()) return false;
  const std::int64_t count = a.form.out_features;
  if (a.form.dtype == b.form.dtype &&
      std::memcmp(a.form.data, b.form.data, static_cast<std::size_t>(a.form.bytes())) == 0) {
    return true;
  }
  std::vector<float> left;
  std::vector<float> right;
  constexpr std::int64_t block = 16;
  for (std::int64_t at = 0; at < count; at += block) {
    const std::int64_t rows = std::min(block, count - at);
    rows_of(a, at, rows, left);
    rows_of(b, at, rows, right);
    if (left != right) return false;
  }
  return true;
}

/// The projections of an MLP or a shared expert.
struct MlpMatrices {
  Matrix gate, up, down;  // gate: ModelConfig::has_mlp_gate
};

/// at: "model.layers.0." and the name of MLPs or shared experts, with a dot.
MlpMatrices place_projections(Placer& placer, const ModelConfig& config, const Family& family,
                              const std::string& at, std::int64_t width) {
  const std::int64_t hidden = config.hidden_size;
  const auto projection = [&](std::size_t which) {
    return fmt::format("{}{}.weight", at, family.names.mlp_projections[which]);
  };
  MlpMatrices mlp;
  if (family.fused_gate_up) {
    const std::string fused = fmt::format("{}{}.weight", at, family.names.mlp_fused);
    mlp.gate = placer.rows(fused, 0, width, 2 * width, hidden);
    mlp.up = placer.rows(fused, width, width, 2 * width, hidden);
  } else {
    if (config.has_mlp_gate()) mlp.gate = placer.matrix(projection(0), width, hidden);
    mlp.up = placer.matrix(projection(1), width, hidden);
  }
  mlp.down = placer.matrix(projection(2), hidden, width);
  return mlp;
}

/// at: "model.layers.0." and the name of MLPs.
void place_mlp(Placer& placer, const ModelConfig& config, const Family& family,
               const std::string& at, std::int64_t mlp, LayerWeights& layer) {
  const std::int64_t hidden = config.hidden_size;
  const MlpMatrices matrices = place_projections(placer, config, family, at, mlp);
  layer.gate = matrices.gate;
  layer.up = matrices.up;
  layer.down = matrices.down;
  if (!config.mlp_bias) return;
  if (config.has_mlp_gate()) layer.gate_bias = placer.vector(at + "gate_proj.bias", mlp);
  layer.up_bias = placer.vector(at + "up_proj.bias", mlp);
  layer.down_bias = placer.vector(at + "down_proj.bias", hidden);
}

/// at: "model.layers.0."
MixtureWeights place_mixture(Placer& placer, const ModelConfig& config, const Family& family,
                             const std::string& at) {
  const FamilyMixture& names = family.mixture;
  const ExpertMixture& mixture = config.mixture;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t width = mixture.intermediate_size;
  const std::string router = fmt::format("{}{}.", at, names.router);
  const std::string experts = fmt::format("{}{}.", at, names.experts_at);
  MixtureWeights weights;
  if (const std::int64_t shared = mixture.shared_intermediate_size; shared > 0) {
    if (mixture.shared_gate)
      weights.shared_weight =
          placer.unrounded(fmt::format("{}{}.weight", at, names.shared_gate), 1, hidden);
    const MlpMatrices expert = place_projections(placer, config, family,
                                                 fmt::format("{}{}.", at, names.shared_at), shared);
    weights.shared_gate = expert.gate;
    weights.shared_up = expert.up;
    weights.shared_down = expert.down;
  }
  weights.router = placer.unrounded(router + "weight", mixture.experts, hidden);
  if (mixture.own_norms) {
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(hidden)));
    weights.router_norm = placer.vector(at + "router.scale", hidden, 0, scale);
    weights.expert_scales = placer.vector(at + "router.per_expert_scale", mixture.experts);
    weights.input_norm = placer.vector(at + "pre_feedforward_layernorm_2.weight", hidden);
    weights.output_norm = placer.vector(at + "post_feedforward_layernorm_2.weight", hidden);
    weights.mlp_output_norm = placer.vector(at + "post_feedforward_layernorm_1.weight", hidden);
  }
  if (mixture.choice_bias)
    weights.choice_bias =
        placer.vector(fmt::format("{}{}", at, names.choice_bias), mixture.experts);
  if (names.stacked) {
    const auto stacked = [&](std::size_t tensor, std::int64_t out, std::int64_t in,
                             std::int64_t part, std::int64_t parts) {
      const std::string name =
          fmt::format("{}{}{}", experts, names.projections[tensor], names.stacked_ending);
      return placer.stacked_experts(name, mixture, out, in, part, parts);
    };
    weights.gate = stacked(0, width, hidden, 0, 2);
    weights.up = stacked(0, width, hidden, 1, 2);
    weights.down = stacked(2, hidden, width, 0, 1);
    return weights;
  }
  if (names.fused) {
    weights.router_bias = placer.vector(router + "bias", mixture.experts);
    const std::string gate_up = experts + "gate_up_proj";
    const std::string down = experts + "down_proj";
    weights.gate = placer.fused_experts(gate_up, mixture, width, hidden, 0, 2);
    weights.up = placer.fused_experts(gate_up, mixture, width, hidden, 1, 2);
    weights.down = placer.fused_experts(down, mixture, hidden, width, 0, 1);
    weights.gate_biases = placer.expert_biases(gate_up + "_bias", mixture.experts, width, 0, 2);
    weights.up_biases = placer.expert_biases(gate_up + "_bias", mixture.experts, width, 1, 2);
    weights.down_biases = placer.expert_biases(down + "_bias", mixture.experts, hidden, 0, 1);
    return weights;
  }
  const auto named = [&](std::size_t projection, std::int64_t out, std::int64_t in) {
    return placer.named_experts(experts, names.projections[projection], mixture, out, in);
  };
  if (config.has_mlp_gate()) weights.gate = named(0, width, hidden);
  weights.up = named(1, width, hidden);
  weights.down = named(2, hidden, width);
  return weights;
}

/// Collects rows of a fused projection, which has a block of rows for each key head.
class RowsByKeyHead {
 public:
  RowsByKeyHead(std::string tensor, std::int64_t heads, std::int64_t block)
      : tensor_(std::move(tensor)), heads_(heads), block_(block) {}

  /// Adds rows first .. first + count of every block.
  void add(std::int64_t first, std::int64_t count) {
    for (std::int64_t h = 0; h < heads_; ++h)
      rows_.push_back({tensor_, {h * block_ + first, count, heads_ * block_}});
  }
  /// Returns what was added since the last call.
  std::vector<Placer::TensorRows> take() { return std::exchange(rows_, {}); }

 private:
  std::string tensor_;
  std::int64_t heads_, block_;
  std::vector<Placer::TensorRows> rows_;
};

constexpr const char* qkv_name = "in_proj_qkv.weight";

void place_qkv_and_z(Placer& placer, const GatedDeltaNet& net, std::int64_t hidden,
                     const std::string& at, DeltaWeights& weights) {
  weights.qkv = placer.matrix(at + qkv_name, net.qkv_width(), hidden);
  weights.z = placer.matrix(at + "in_proj_z.weight", net.value_width(), hidden);
}

/// The projections of a family that has fused ones (Qwen3-Next): for each key head q and k, then v
/// and z of its value heads. b and a are fused likewise. llama.cpp's converter takes q, k, v and z
/// apart, and leaves b and a together.
void place_fused_delta(Placer& placer, const GatedDeltaNet& net, std::int64_t hidden,
                       const std::string& at, DeltaWeights& weights) {
  const std::int64_t of_head = net.value_heads / net.key_heads;
  const std::string narrow = at + "in_proj_ba.weight";
  RowsByKeyHead gates(narrow, net.key_heads, 2 * of_head);
  gates.add(0, of_head);
  gates.add(of_head, of_head);
  weights.gates = placer.unrounded_joined(gates.take(), hidden);
  const std::string wide = at + "in_proj_qkvz.weight";
  if (!placer.has(wide) && placer.has(at + qkv_name)) {
    place_qkv_and_z(placer, net, hidden, at, weights);
    return;
  }
  const std::int64_t values = of_head * net.value_dim;
  RowsByKeyHead rows(wide, net.key_heads, 2 * (net.key_dim + values));
  rows.add(0, net.key_dim);
  rows.add(net.key_dim, net.key_dim);
  rows.add(2 * net.key_dim, values);
  weights.qkv = placer.joined(rows.take(), hidden);
  rows.add(2 * net.key_dim + values, values);
  weights.z = placer.joined(rows.take(), hidden);
}

/// at: "model.layers.0.linear_attn."
DeltaWeights place_delta(Placer& placer, const ModelConfig& config, const Family& family,
                         const std::string& at) {
  const GatedDeltaNet& net = config.delta;
  const std::int64_t hidden = config.hidden_size;
  DeltaWeights weights;
  if (family.fused_delta) {
    place_fused_delta(placer, net, hidden, at, weights);
  } else {
    place_qkv_and_z(placer, net, hidden, at, weights);
    const MatrixRows all{0, net.value_heads, net.value_heads};
    weights.gates = placer.unrounded_joined(
        {{{at + "in_proj_b.weight", all}, {at + "in_proj_a.weight", all}}}, hidden);
  }
  weights.kernel = placer.convolution(at + "conv1d.weight", net.qkv_width(), net.kernel);
  weights.fading = placer.fading(at + "A_log", net.value_heads);
  weights.time_bias = placer.vector(at + "dt_bias", net.value_heads);
  weights.norm = placer.vector(at + "norm.weight", net.value_dim);
  weights.out = placer.matrix(at + "out_proj.weight", hidden, net.value_width());
  return weights;
}

/// at: "model.layers.0." and the name of Mamba-2 layers.
MambaWeights place_mamba(Placer& placer, const ModelConfig& config, const std::string& at) {
  const Mamba2& net = config.mamba;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t all = net.width() + net.input_width() + net.heads;
  const std::string in = at + "in_proj.weight";
  MambaWeights weights;
  weights.z = placer.rows(in, 0, net.width(), all, hidden);
  weights.xbc = placer.rows(in, net.width(), net.input_width(), all, hidden);
  weights.dt = placer.unrounded_joined({{in, {all - net.heads, net.heads, all}}}, hidden);
  weights.kernel = placer.convolution(at + "conv1d.weight", net.input_width(), net.kernel);
  if (config.mamba_bias) weights.bias = placer.vector(at + "conv1d.bias", net.input_width());
  weights.fading = placer.fading(at + "A_log", net.heads);
  weights.time_bias = placer.vector(at + "dt_bias", net.heads);
  weights.skip = placer.vector(at + "D", net.heads);
  weights.norm = placer.vector(at + "norm.weight", net.width());
  weights.out = placer.matrix(at + "out_proj.weight", hidden, net.width());
  return weights;
}

/// at: "model.layers.0.conv."
ConvolutionWeights place_convolution(Placer& placer, const ModelConfig& config,
                                     const std::string& at) {
  const ShortConvolution& net = config.convolution;
  ConvolutionWeights weights;
  weights.in = placer.matrix(at + "in_proj.weight", net.input_width(), config.hidden_size);
  weights.kernel = placer.convolution(at + "conv.weight", net.width, net.kernel);
  weights.out = placer.matrix(at + "out_proj.weight", config.hidden_size, net.width);
  return weights;
}

/// layer_at: "model.layers.0."
void place_latent(Placer& placer, const ModelConfig& config, const std::string& layer_at,
                  LayerWeights& layer) {
  const std::string at = layer_at + "self_attn.";
  const LatentAttention& net = config.latent;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t heads = config.attention.q_heads;
  const std::int64_t q_outputs = heads * net.query_dim();
  LatentWeights& weights = layer.latent;
  if (net.q_rank > 0) {
    weights.q_latent = placer.matrix(at + "q_a_proj.weight", net.q_rank, hidden);
    if (config.qkv_bias) weights.q_latent_bias = placer.vector(at + "q_a_proj.bias", net.q_rank);
    weights.q_norm = placer.vector(at + "q_a_layernorm.weight", net.q_rank);
    weights.q = placer.matrix(at + "q_b_proj.weight", q_outputs, net.q_rank);
  } else {
    weights.q = placer.matrix(at + "q_proj.weight", q_outputs, hidden);
  }
  const std::int64_t row = net.kv_rank + net.rope_dim;
  const std::string joint = at + "kv_a_proj_with_mqa.";
  weights.latent = placer.rows(joint + "weight", 0, net.kv_rank, row, hidden);
  weights.rope_key = placer.rows(joint + "weight", net.kv_rank, net.rope_dim, row, hidden);
  if (config.qkv_bias) {
    const Vector bias = placer.vector(joint + "bias", row);
    const float* const data = bias.data;
    weights.latent_bias = {data, net.kv_rank};
    weights.rope_bias = {data == nullptr ? nullptr : data + net.kv_rank, net.rope_dim};
  }
  weights.kv_norm = placer.vector(at + "kv_a_layernorm.weight", net.kv_rank);
  const Checkpoint::LatentHead head{.layer = layer_at,
                                    .heads = heads,
                                    .nope_dim = net.nope_dim,
                                    .value_dim = net.value_dim,
                                    .kv_rank = net.kv_rank};
  weights.keys = placer.latent_keys(head);
  weights.values = placer.latent_values(head);
  layer.o = placer.matrix(at + "o_proj.weight", hidden, heads * net.value_dim);
  if (config.o_bias) layer.o_bias = placer.vector(at + "o_proj.bias", hidden);
}

/// at: "model.layers.0." and the name of attention.
void place_attention(Placer& placer, const ModelConfig& config, const Family& family,
                     const std::string& at, std::int64_t l, LayerWeights& layer) {
  const auto optional_vector = [&](bool wanted, const std::string& name, std::int64_t size) {
    return wanted ? placer.vector(name, size) : Vector();
  };
  const std::int64_t hidden = config.hidden_size;
  const AttentionShape& shape = config.attention;
  const std::int64_t head = shape.head_dim_of(l);
  const std::int64_t q_size = shape.q_heads * head;
  const std::int64_t kv_size = shape.kv_heads_of(l) * head;
  const bool has_rows = shape.has_rows(l);
  if (!has_rows) {  // checkpoints have these all the same
    for (const char* unused : {"k_proj", "v_proj", "k_norm"})
      placer.leave(fmt::format("{}{}.weight", at, unused));
  }
  const bool has_values = has_rows && !(config.values_from_keys && shape.window_of(l) == 0);
  const std::int64_t q_outputs = config.output_gate ? 2 * q_size : q_size;
  if (family.fused_qkv) {
    const std::int64_t all = q_size + 2 * kv_size;
    const std::string name = at + "qkv_proj.weight";
    layer.q = placer.rows(name, 0, q_size, all, hidden);
    layer.k = placer.rows(name, q_size, kv_size, all, hidden);
    layer.v = placer.rows(name, q_size + kv_size, kv_size, all, hidden);
  } else {
    layer.q = placer.matrix(at + "q_proj.weight", q_outputs, hidden);
    if (has_rows) layer.k = placer.matrix(at + "k_proj.weight", kv_size, hidden);
    if (has_values) layer.v = placer.matrix(at + "v_proj.weight", kv_size, hidden);
  }
  const std::string output = fmt::format("{}{}.", at, family.names.attention_output);
  layer.o = placer.matrix(output + "weight", hidden, q_size);
  layer.q_bias = optional_vector(config.qkv_bias, at + "q_proj.bias", q_outputs);
  layer.k_bias = optional_vector(config.qkv_bias && has_rows, at + "k_proj.bias", kv_size);
  layer.v_bias = optional_vector(config.qkv_bias && has_values, at + "v_proj.bias", kv_size);
  layer.o_bias = optional_vector(config.o_bias, output + "bias", hidden);
  if (config.qk_norm) {
    const auto norm = [&](std::string_view name, std::int64_t size) {
      return placer.norm(fmt::format("{}{}.weight", at, name), size, family.norm_offset);
    };
    layer.q_norm = norm(family.names.q_norm, config.qk_norm_whole ? q_size : head);
    if (has_rows) layer.k_norm = norm(family.names.k_norm, config.qk_norm_whole ? kv_size : head);
  }
  if (config.attention_sinks) {
    layer.sinks = placer.vector(at + "sinks", config.attention.q_heads);
  }
}

/// at: "model.layers.0."
void place_layer_input(Placer& placer, const ModelConfig& config, const std::string& at,
                       std::int64_t l, LayerWeights& layer) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t size = config.layer_inputs.size;
  layer.input_projection = placer.rows("model.per_layer_model_projection.weight", l * size, size,
                                       config.attention.layers * size, hidden);
  layer.input_gate = placer.matrix(at + "per_layer_input_gate.weight", size, hidden);
  layer.input_output = placer.matrix(at + "per_layer_projection.weight", hidden, size);
  layer.input_output_norm = placer.vector(at + "post_per_layer_input_norm.weight", hidden);
}

/// Empty where the family has no such norm.
Vector place_norm(Placer& placer, const Family& family, std::string_view at, std::string_view name,
                  std::int64_t size) {
  if (name.empty()) return {};
  return placer.norm(fmt::format("{}{}.weight", at, name), size, family.norm_offset);
}

/// at: "model.layers.0.", of attention or a recurrence. mlp_at: of the MLP behind it; empty: there
/// is none.
LayerWeights place_layer(Placer& placer, const ModelConfig& config, std::int64_t l,
                         const std::string& at, const std::string& mlp_at) {
  const Family& family = family_of(config);
  const std::int64_t hidden = config.hidden_size;
  const auto norm = [&](const std::string& of, std::string_view name) {
    return place_norm(placer, family, of, name, hidden);
  };
  const bool has_mlp = !mlp_at.empty();
  LayerWeights layer;
  layer.input_norm = norm(at, family.norms.before_attention);
  layer.attention_norm = norm(at, family.norms.after_attention);
  if (has_mlp) layer.mlp_norm = norm(mlp_at, family.norms.before_mlp);
  if (has_mlp) layer.mlp_output_norm = norm(mlp_at, family.norms.after_mlp);
  if (config.latent.kv_rank > 0) {
    place_latent(placer, config, at, layer);
  } else if (config.attention.is_attention(l)) {
    place_attention(placer, config, family, fmt::format("{}{}", at, family.names.attention), l,
                    layer);
  } else if (config.mamba.heads > 0) {
    layer.mamba = place_mamba(placer, config, fmt::format("{}{}", at, family.mamba.at));
  } else if (config.convolution.width > 0) {
    layer.convolution = place_convolution(placer, config, at + "conv.");
  } else {
    layer.delta = place_delta(placer, config, family, at + "linear_attn.");
  }
  if (config.mixture.in(l)) layer.mixture = place_mixture(placer, config, family, mlp_at);
  if (config.has_dense_mlp(l)) {
    place_mlp(placer, config, family, fmt::format("{}{}", mlp_at, family.names.mlp),
              config.intermediate_size_of(l), layer);
  }
  if (config.layer_inputs.size > 0) place_layer_input(placer, config, at, l, layer);
  if (config.layer_scale) layer.scale = placer.number(at + "layer_scalar");
  return layer;
}

Weights place(Placer& placer, const ModelConfig& config) {
  const Family& family = family_of(config);
  Weights weights;
  weights.embedding = placer.embedding(config);
  for (std::int64_t l = 0; l < config.attention.layers; ++l) {
    const auto stored = config.stored_layers.empty()
                            ? ModelConfig::StoredLayer{l, l}
                            : config.stored_layers[static_cast<std::size_t>(l)];
    weights.layers.push_back(
        place_layer(placer, config, l, fmt::format("model.layers.{}.", stored.mixer),
                    stored.mlp < 0 ? std::string() : fmt::format("model.layers.{}.", stored.mlp)));
  }
  if (config.value_norm) weights.ones = placer.constant(config.attention.widest_head(), 1);
  if (const std::int64_t size = config.layer_inputs.size; size > 0) {
    weights.layer_inputs = placer.layer_inputs("model.embed_tokens_per_layer.weight", config);
    weights.layer_inputs_norm =
        place_norm(placer, family, "model.", "per_layer_projection_norm", size);
  }
  weights.final_norm =
      place_norm(placer, family, "model.", family.names.final_norm, config.hidden_size);
  weights.lm_head = config.tied_embeddings ? weights.embedding : placer.table(head_name, config);
  return weights;
}

/// In front of the names of a model's draft layer.
std::string draft_layer_at(const ModelConfig& config) {
  const std::string_view at = family_of(config).draft_layer.at;
  return at.empty() ? fmt::format("model.layers.{}.", config.attention.layers) : std::string(at);
}

/// at: draft_layer_at of the model. config: the layer's.
Weights place_draft_layer(Placer& placer, const ModelConfig& config, const std::string& at) {
  const Family& family = family_of(config);
  const FamilyDraftLayer& names = family.draft_layer;
  const std::int64_t hidden = config.hidden_size;
  const auto norm = [&](std::string_view name) {
    return place_norm(placer, family, at, name, hidden);
  };
  Weights weights;
  weights.draft.embedding_norm = norm(names.embedding_norm);
  weights.draft.state_norm = norm(names.state_norm);
  weights.draft.projection =
      placer.matrix(fmt::format("{}{}.weight", at, names.projection), hidden, 2 * hidden);
  const std::string layer_at = fmt::format("{}{}", at, names.layer);
  weights.layers.push_back(place_layer(placer, config, 0, layer_at, layer_at));
  weights.final_norm = norm(names.final_norm);
  return weights;
}

}  // namespace

std::string Weights::settle_tie(const Checkpoint& from, ModelConfig& config) {
  if (!config.tied_embeddings) return {};
  if (!from.has(embedding_name) || !from.has(head_name)) return {};
  const MatrixRows all{0, config.vocab_size, config.vocab_size};
  const auto stored = [&](const char* name) {
    return from.matrix(name, all, config.hidden_size, WeightFormat::stored);
  };
  if (same_values(stored(embedding_name), stored(head_name))) return {};
  config.tied_embeddings = false;
  return fmt::format(
      "{}: tensors {} and {} differ, though config.json ties them (tie_word_embeddings); each is "
      "used as it is, as in transformers: set tie_word_embeddings to false if that is right",
      path_text(from.source()), embedding_name, head_name);
}

WeightsSize Weights::size(const Checkpoint& from, const ModelConfig& config,
                          const DeviceSizes& device, WeightFormat format) {
  if (format != WeightFormat::stored && !from.quantised().empty()) {
    throw Unsupported(fmt::format(
        "{}: the weights are quantised already ({}) and are not rounded once more to {}; load them "
        "as they are stored (--weights stored), or a checkpoint of this model in bf16",
        path_text(from.source()), from.quantised(), name_of(format)));
  }
  Placer placer(from, device, format);
  place(placer, config);
  return placer.size();
}

bool Weights::has_draft_layer(const Checkpoint& from, const ModelConfig& config) {
  const Family& family = family_of(config);
  const FamilyDraftLayer& names = family.draft_layer;
  if (names.projection.empty()) return false;
  const std::string at = draft_layer_at(config);
  if (!from.has(fmt::format("{}{}.weight", at, names.projection))) return false;
  // Experts may lie in tensors of another form than the model's own.
  const FamilyMixture& mixture = family.mixture;
  return config.mixture.experts == 0 ||
         from.has(fmt::format("{}{}{}.0.{}.weight", at, names.layer, mixture.experts_at,
                              mixture.projections[1]));
}

WeightsSize Weights::draft_layer_size(const Checkpoint& from, const ModelConfig& config,
                                      const DeviceSizes& device, WeightFormat format) {
  Placer placer(from, device, format);
  place_draft_layer(placer, draft_layer_config(config), draft_layer_at(config));
  return placer.size();
}

Weights Weights::load_draft_layer(const Checkpoint& from, const ModelConfig& config,
                                  const Weights& model, ComputeDevice& device,
                                  WeightFormat format) {
  const WeightsSize all = draft_layer_size(from, config, device, format);
  if (all.packed) device.prepare_packed();
  Buffer storage = device.allocate(all.device, "weights of the draft layer");
  Placer placer(from, device, {.weights = format}, all, storage.data());
  Weights weights = place_draft_layer(placer, draft_layer_config(config), draft_layer_at(config));
  weights.embedding = model.embedding;
  weights.lm_head = model.lm_head;
  weights.storage = std::move(storage);
  return weights;
}

Weights Weights::load(const Checkpoint& from, const ModelConfig& config, ComputeDevice& device,
                      const LoadOptions& options) {
  const WeightsSize all = size(from, config, device, options.weights);
  if (all.packed) device.prepare_packed();
  Buffer storage = device.allocate(all.device, "weights");
  Placer placer(from, device, options, all, storage.data());
  Weights weights = place(placer, config);
  weights.storage = std::move(storage);
  return weights;
}

}  // namespace topkv
