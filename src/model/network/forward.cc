#include "src/model/network/forward.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <utility>

#include "src/core/math/convert.h"
#include "src/core/math/vector_math.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/threads.h"
#include "src/device/pieces.h"
#include "src/model/config/dual_chunk.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t mlp_tokens = 2048;  // of a chunk at a time: bounds the widest activations
constexpr std::int64_t logit_rows = 16;    // logits at a time, likewise
constexpr std::int64_t cap_grain = 1 << 14;

/// Likewise where a layer has experts: so many that each is read for some hundred rows, which are
/// a product of their own.
std::int64_t mixture_tokens(const ExpertMixture& mixture) {
  constexpr std::int64_t rows = 512;
  constexpr std::int64_t most = 8192;
  return std::clamp(rows * mixture.experts / mixture.per_token, mlp_tokens, most);
}

}  // namespace

template <class Place>
void Forward::lay_out_mlp(const ModelConfig& config, std::int64_t op, std::int64_t chunk,
                          const Place& place, Activations& out) {
  const ExpertMixture& mixture = config.mixture;
  const std::int64_t f32 = bytes_of(DType::f32);
  const bool any = mixture.experts > 0;
  bool any_dense = false;
  for (std::int64_t l = 0; l < config.attention.layers; ++l)
    any_dense = any_dense || config.has_dense_mlp(l);
  const std::int64_t tokens = any ? std::min(chunk, mixture_tokens(mixture)) : 0;
  const std::int64_t slots = tokens * mixture.per_token;
  const std::int64_t values = std::max(
      any_dense ? std::min(chunk, mlp_tokens) *
                      std::max(config.intermediate_size, config.sharing_intermediate_size)
                : 0,
      std::max(slots * mixture.intermediate_size, tokens * mixture.shared_intermediate_size));
  // What experts give lies where gate and up were, which are behind each other.
  const std::int64_t half = Pieces::rounded(values * f32) / f32;
  place(out.gate, half, f32);
  place(out.up, std::max(half, slots * config.hidden_size - half), f32);
  place(out.mlp, values, op);
  if (!any) return;
  out.parts = out.gate;
  place(out.scores, tokens * mixture.experts, f32);
  place(out.shares, slots, f32);
  if (mixture.shared_intermediate_size > 0) place(out.shared_weight, tokens, f32);
  place(out.chosen, slots, std::int64_t{sizeof(std::int32_t)});
  if (slots <= mixture.experts) return;  // never sorted
  place(out.slots, slots, std::int64_t{sizeof(std::int32_t)});
  place(out.places, slots, std::int64_t{sizeof(std::int32_t)});
  place(out.gathered, slots * config.hidden_size, op);
}

template <class Place>
void Forward::lay_out_recurrences(const ModelConfig& config, std::int64_t op, std::int64_t chunk,
                                  const Place& place, Activations& out) {
  const RecurrentWidths widths = recurrent_widths(config);
  const std::int64_t f32 = bytes_of(DType::f32);
  const std::int64_t tokens = std::min(chunk, recurrent_tokens);
  place(out.recurrent_in, tokens * widths.in, f32);
  place(out.recurrent_gate, tokens * widths.gate, f32);
  place(out.recurrent_rates, tokens * widths.rates, f32);
  place(out.recurrent_room, tokens * widths.room, f32);
  place(out.recurrent_out, tokens * widths.out, f32);
  place(out.recurrent_heads, tokens * widths.heads, op);
  for (float*& state : out.recurrent_states) place(state, config.state_size(), f32);
  place(out.state_table, 2 * config.attention.layers, std::int64_t{sizeof(float*)});
}

template <class Place>
void Forward::lay_out_latent(const LatentAttention& net, std::int64_t heads, std::int64_t op,
                             std::int64_t chunk, const Place& place, Activations& out) {
  const std::int64_t f32 = bytes_of(DType::f32);
  const std::int64_t tokens = std::min(chunk, latent_tokens);
  const std::int64_t rows = tokens * heads;
  place(out.q_latent, tokens * net.q_rank, f32);
  place(out.q_operand, tokens * net.q_rank, op);
  place(out.head_q, rows * net.query_dim(), f32);
  place(out.latent, tokens * net.kv_rank, f32);
  place(out.rope_key, tokens * net.rope_dim, f32);
  place(out.head_values, rows * std::max({net.nope_dim, net.kv_rank, net.value_dim}), f32);
  place(out.head_operand, rows * std::max(net.nope_dim, net.kv_rank), op);
  place(out.head_products, rows * std::max(net.kv_rank, net.value_dim), f32);
  place(out.head_numbers, heads, std::int64_t{sizeof(std::int32_t)});
}

std::int64_t Forward::lay_out(const ModelConfig& config, DType operand, std::int64_t chunk,
                              std::byte* memory, Activations& out) {
  Pieces pieces;
  const auto place = [&](auto*& pointer, std::int64_t elements, std::int64_t element_bytes) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(
        reinterpret_cast<std::uintptr_t>(memory) +
        static_cast<std::uintptr_t>(pieces.place(elements * element_bytes)));
  };
  const AttentionShape& shape = config.attention;
  const std::int64_t q_width = shape.q_heads * shape.widest_head();
  const std::int64_t kv_width = shape.widest_kv();
  const std::int64_t f32 = bytes_of(DType::f32);
  const std::int64_t op = bytes_of(operand);
  place(out.x, chunk * config.hidden_size, f32);
  place(out.q, chunk * q_width, f32);
  place(out.k, chunk * kv_width, f32);
  if (!shape.keys_are_values) place(out.v, chunk * kv_width, f32);
  place(out.attended, chunk * q_width, f32);
  if (config.attention_sinks) place(out.lse, chunk * shape.q_heads, f32);
  place(out.logits, std::min(chunk, logit_rows) * config.vocab_size, f32);
  if (config.norm_outputs) place(out.branch, chunk * config.hidden_size, f32);
  const auto place_angles_of = [&](std::int64_t rotary_dim, Angles& angles) {
    place(angles.cos, chunk * rotary_dim / 2, f32);
    place(angles.sin, chunk * rotary_dim / 2, f32);
  };
  const auto place_angles = [&](Angles& angles) { place_angles_of(config.rotary_dim, angles); };
  place_angles(out.angles);
  if (config.sliding_rope_theta > 0) place_angles_of(config.sliding_rotary(), out.sliding_angles);
  if (config.dual_chunk.chunk_size > 0) {
    place(out.q_next, chunk * q_width, f32);
    place(out.q_far, chunk * q_width, f32);
    for (Angles& angles : out.query_angles) place_angles(angles);
  }
  if (config.query_growth.beta != 0) place_angles(out.query_angles[0]);
  if (config.output_gate) {
    place(out.q_gated, chunk * 2 * q_width, f32);
    place(out.output_gate, chunk * q_width, f32);
  }
  if (!shape.state_size.empty()) lay_out_recurrences(config, op, chunk, place, out);
  if (shape.indexer) {
    place(out.index_q, chunk * shape.indexer->heads * shape.indexer->dim, f32);
    place(out.index_k, chunk * shape.indexer->dim, f32);
    place(out.index_weights, chunk * shape.indexer->heads, f32);
  }
  place(out.hidden, chunk * config.hidden_size, op);
  const LatentAttention& latent = config.latent;
  if (latent.kv_rank > 0) lay_out_latent(latent, shape.q_heads, op, chunk, place, out);
  const std::int64_t head_width = latent.kv_rank > 0 ? latent.value_dim : shape.widest_head();
  place(out.heads, chunk * shape.q_heads * head_width, op);
  lay_out_mlp(config, op, chunk, place, out);
  if (config.mixture.own_norms) place(out.mixed, chunk * config.hidden_size, f32);
  if (const std::int64_t size = config.layer_inputs.size; size > 0) {
    place(out.layer_inputs, shape.layers * chunk * size, f32);
    place(out.layer_rows, shape.layers * chunk * size, f32);
    place(out.layer_gate, chunk * size, f32);
    place(out.layer_gated, chunk * size, op);
  }
  if (config.draft_layer) {
    place(out.states, chunk * config.hidden_size, f32);
    place(out.joined, chunk * 2 * config.hidden_size, op);
  }
  return pieces.used();
}

std::int64_t Forward::bytes(const ModelConfig& config, const DeviceSizes& device,
                            std::int64_t chunk) {
  Activations unused{};
  return lay_out(config, device.operand_dtype(), chunk, nullptr, unused);
}

Forward::Forward(const ModelConfig& config, const Weights& weights,
                 const std::shared_ptr<ComputeDevice>& device, std::int64_t chunk)
    : config_(config),
      weights_(weights),
      device_(device),
      chunk_(chunk),
      memory_(device->allocate(bytes(config, *device, chunk), "activations")),
      rope_(RopeTable::of_model(config)),
      sliding_rope_(RopeTable::of_sliding(config)),
      index_rope_(weights.indexer
                      ? RopeTable(weights.indexer->rope_theta(), weights.indexer->rope_dim(), {})
                      : RopeTable(1, 0, {})),
      clock_(device->phase_clock()),
      steps_(static_cast<std::size_t>(config.attention.layers + 1)) {
  lay_out(config, device->operand_dtype(), chunk, memory_.data(), a_);
  if (config.latent.kv_rank > 0) number_heads();
}

void Forward::run(std::span<const Token> tokens, std::int64_t first, std::int64_t length,
                  const TextLayers& text) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  DeviceLock lock = device_->lock();
  clock_->begin(Phase::other);
  place_angles(first, count, length);
  if (weights_.indexer) {
    positions_.resize(static_cast<std::size_t>(count));
    std::iota(positions_.begin(), positions_.end(), first);
    place_index_angles(positions_);
  }
  AttentionStep step;
  if (const DualChunk& chunks = config_.dual_chunk; chunks.chunk_size > 0) {
    step.q_far = a_.q_far;
    step.q_next = ChunkPositions(chunks).next_is_far(first, count) ? a_.q_far : a_.q_next;
  }
  run_placed(tokens, 1, step, text, std::move(lock));
}

void Forward::run_each(std::span<const Token> tokens, std::span<const std::int64_t> positions,
                       const TextLayers& texts) {
  DeviceLock lock = device_->lock();
  clock_->begin(Phase::other);
  if (config_.sliding_rope_theta > 0)
    place(sliding_rope_.angles(positions), config_.sliding_rotary(), std::ssize(tokens),
          a_.sliding_angles);
  place(rope_.angles(positions), config_.rotary_dim, std::ssize(tokens), a_.angles);
  place_growing_angles(positions);
  place_index_angles(positions);
  run_placed(tokens, std::ssize(tokens), {}, texts, std::move(lock));
}

void Forward::run_draft(std::span<const Token> tokens, std::span<const float> states,
                        std::int64_t first, const TextLayers& text) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  DeviceLock lock = device_->lock();
  clock_->begin(Phase::other);
  device_->copy_in(states.data(), std::ssize(states) * bytes_of(DType::f32),
                   reinterpret_cast<std::byte*>(a_.states));
  place_angles(first, count, first + count);
  run_placed(tokens, 1, {}, text, std::move(lock));
}

void Forward::run_placed(std::span<const Token> tokens, std::int64_t texts, AttentionStep step,
                         const TextLayers& layers, DeviceLock lock) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  recording_ = false;
  device_->embed(weights_.embedding, tokens, a_.x);
  // The residual is kept divided by residual_scale, so that what is added to it needs no factor.
  const double scale = config_.embedding_scale / config_.residual_scale;
  if (scale != 1) device_->scale(static_cast<float>(scale), count * config_.hidden_size, a_.x);
  if (config_.layer_inputs.size > 0) make_layer_inputs(tokens);
  if (config_.draft_layer) join_states(count);
  if (replays(count)) find_states(layers);
  const std::int64_t end = config_.attention.layers;
  for (std::int64_t l = between(0, count); l < end; l = between(l + 1, count)) {
    check_stop();
    if (!config_.attention.is_attention(l)) {
      recur(l, count, texts, layers);
      continue;
    }
    clock_->begin(Phase::attention);
    lock = {};  // others may use the device while this one waits for what the host does
    step.layer = l;
    step.tokens = count;
    step.q = a_.q;
    step.k = config_.attention.has_rows(l) ? a_.k : nullptr;
    step.v = config_.attention.has_rows(l) ? a_.v : nullptr;
    step.out = a_.attended;
    step.lse = a_.lse;
    give_index_inputs(step);
    layers.attend(step);
    lock = device_->lock();
  }
  if (replays(count)) keep_states(layers);
  clock_->end();
}

void Forward::place_angles(std::int64_t first, std::int64_t tokens, std::int64_t length) {
  if (config_.sliding_rope_theta > 0)
    place(sliding_rope_.angles(first, tokens), config_.sliding_rotary(), tokens, a_.sliding_angles);
  if (config_.dual_chunk.chunk_size > 0) return place_chunk_angles(first, tokens, length);
  place(rope_.angles(first, tokens), config_.rotary_dim, tokens, a_.angles);
  if (config_.query_growth.beta == 0) return;
  positions_.resize(static_cast<std::size_t>(tokens));
  std::iota(positions_.begin(), positions_.end(), first);
  place_growing_angles(positions_);
}

// RoPE turns whole heads here, so that a factor on cos and sin is one on the query.
void Forward::place_growing_angles(std::span<const std::int64_t> positions) {
  const QueryGrowth& growth = config_.query_growth;
  if (growth.beta != 0)
    place(rope_.angles(positions, growth), config_.rotary_dim, std::ssize(positions),
          a_.query_angles[0]);
}

void Forward::place_chunk_angles(std::int64_t first, std::int64_t tokens, std::int64_t length) {
  const ChunkPositions chunks(config_.dual_chunk);
  const double temperature = chunks.temperature(length);
  positions_.resize(static_cast<std::size_t>(tokens));
  const auto with = [&](double factor, const Angles& to, const auto& position_of) {
    for (std::int64_t t = 0; t < tokens; ++t)
      positions_[static_cast<std::size_t>(t)] = position_of(first + t);
    place(rope_.angles(positions_, factor), config_.rotary_dim, tokens, to);
  };
  const auto within = [&](std::int64_t p) { return chunks.within(p); };
  with(1, a_.angles, within);
  with(temperature, a_.query_angles[0], within);
  with(temperature, a_.query_angles[1], [&](std::int64_t p) { return chunks.next(p); });
  with(temperature, a_.query_angles[2], [&](std::int64_t) { return chunks.far(); });
}

void Forward::place(const RopeAngles& angles, std::int64_t rotary_dim, std::int64_t tokens,
                    const Angles& to) {
  const std::int64_t bytes = tokens * rotary_dim / 2 * bytes_of(DType::f32);
  device_->copy_in(angles.cos, bytes, reinterpret_cast<std::byte*>(to.cos));
  device_->copy_in(angles.sin, bytes, reinterpret_cast<std::byte*>(to.sin));
}

std::int64_t Forward::between(std::int64_t l, std::int64_t tokens) {
  const std::int64_t layers = config_.attention.layers;
  std::int64_t next = l;
  if (replays(tokens))
    while (next < layers && !config_.attention.is_attention(next)) ++next;
  const auto work = [&] {
    for (std::int64_t at = l; at <= next; ++at) {
      if (at > 0) end_layer(at - 1, tokens);
      if (at == layers) return norm(weights_.final_norm, tokens);
      begin_layer(at, tokens);
      if (at == next) return;
      take_tokens(weights_.layers[static_cast<std::size_t>(at)], 0, 1,
                  {nullptr, nullptr, a_.state_table + 2 * at});
    }
  };
  if (!replays(tokens)) {
    work();
    return next;
  }
  // Decoding: many small operations, the same for every token.
  clock_->begin(Phase::matmul);
  device_->replay(steps_[static_cast<std::size_t>(l)], [&] {
    recording_ = true;
    work();
    recording_ = false;
  });
  return next;
}

void Forward::begin_layer(std::int64_t l, std::int64_t tokens) {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(l)];
  read_residual(w.input_norm, tokens);
  if (config_.attention.is_attention(l)) {
    queries_keys_values(l, tokens);
    index_inputs(l, tokens);
  } else if (tokens <= recurrent_tokens) {
    recurrence_inputs(w, 0, tokens);
  }
}

void Forward::end_layer(std::int64_t l, std::int64_t tokens) {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(l)];
  if (config_.attention.is_attention(l)) {
    attention_output(l, tokens);
  } else if (tokens <= recurrent_tokens) {
    recurrence_output(w, 0, tokens);
  }
  mlp(w, tokens);
  if (config_.layer_inputs.size > 0) add_layer_input(l, tokens);
  if (!config_.layer_scale) return;
  begin(Phase::other);
  device_->scale(w.scale, tokens * config_.hidden_size, a_.x);
}

void Forward::queries_keys_values(std::int64_t l, std::int64_t tokens) {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(l)];
  if (!w.latent.empty()) return latent_inputs(l, tokens);
  const AttentionShape& shape = config_.attention;
  const std::int64_t dim = shape.head_dim_of(l);
  const std::int64_t kv_heads = shape.kv_heads_of(l);
  const bool has_rows = shape.has_rows(l);
  float* const q = config_.output_gate ? a_.q_gated : a_.q;
  if (!has_rows) {
    project({{w.q, w.q_bias.data, q}}, a_.hidden, tokens);
  } else if (w.v.out_features == 0) {
    project({{w.q, w.q_bias.data, q}, {w.k, w.k_bias.data, a_.k}}, a_.hidden, tokens);
  } else {
    project({{w.q, w.q_bias.data, q}, {w.k, w.k_bias.data, a_.k}, {w.v, w.v_bias.data, a_.v}},
            a_.hidden, tokens);
  }
  begin(Phase::other);
  if (has_rows && w.v.out_features == 0) device_->copy(a_.k, tokens * kv_heads * dim, a_.v);
  if (config_.output_gate)
    device_->part_pairs(q, tokens * shape.q_heads, dim, a_.q, a_.output_gate);
  const auto norm = [&](const Vector& weight, std::int64_t width, std::int64_t heads, float* x) {
    device_->head_norm(weight.data, tokens * heads * dim / width, width,
                       static_cast<float>(config_.rms_norm_eps), x);
  };
  if (config_.qk_norm) {
    norm(w.q_norm, w.q_norm.size, shape.q_heads, a_.q);
    if (has_rows) norm(w.k_norm, w.k_norm.size, kv_heads, a_.k);
  }
  if (config_.value_norm && has_rows) norm(weights_.ones, dim, kv_heads, a_.v);
  rope(l, tokens);
}

void Forward::rope(std::int64_t l, std::int64_t tokens) {
  const LayerRope which = config_.rope_of(l);
  if (which == LayerRope::none) return;
  const AttentionShape& shape = config_.attention;
  const std::int64_t dim = shape.head_dim_of(l);
  const bool sliding = which == LayerRope::sliding;
  const auto rotate = [&](const Angles& angles, std::int64_t heads, float* x) {
    device_->rope({.cos = angles.cos,
                   .sin = angles.sin,
                   .rotary_dim = sliding ? config_.sliding_rotary() : config_.rotary_dim,
                   .interleaved = config_.rope_interleaved},
                  tokens, heads, dim, x);
  };
  const Angles& angles = sliding ? a_.sliding_angles : a_.angles;
  if (shape.has_rows(l)) rotate(angles, shape.kv_heads_of(l), a_.k);
  if (config_.dual_chunk.chunk_size == 0)
    return rotate(config_.query_growth.beta == 0 ? angles : a_.query_angles[0], shape.q_heads,
                  a_.q);
  float* const forms[query_forms] = {a_.q, a_.q_next, a_.q_far};
  for (std::int64_t i = 1; i < query_forms; ++i)
    device_->copy(a_.q, tokens * shape.q_heads * dim, forms[i]);
  for (std::int64_t i = 0; i < query_forms; ++i)
    rotate(a_.query_angles[i], shape.q_heads, forms[i]);
}

void Forward::attention_output(std::int64_t l, std::int64_t tokens) {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(l)];
  if (!w.latent.empty()) {
    latent_values(w.latent, tokens);
    return add_to_residual(w.o, w.o_bias, w.attention_norm, a_.heads, tokens, a_.x);
  }
  const AttentionShape& shape = config_.attention;
  const std::int64_t dim = shape.head_dim_of(l);
  begin(Phase::other);
  if (!w.sinks.empty()) {
    device_->attend_sinks(w.sinks.data, a_.lse, tokens, shape.q_heads, dim, a_.attended);
  }
  const std::int64_t values = tokens * shape.q_heads * dim;
  if (config_.output_gate) {
    device_->sigmoid_multiply(a_.output_gate, a_.attended, values, a_.heads);
  } else {
    device_->to_operand(a_.attended, values, a_.heads);
  }
  add_to_residual(w.o, w.o_bias, w.attention_norm, a_.heads, tokens, a_.x);
}

void Forward::join_states(std::int64_t tokens) {
  const DraftInputWeights& w = weights_.draft;
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t row = hidden * bytes_of(device_->operand_dtype());
  const auto epsilon = static_cast<float>(config_.rms_norm_eps);
  begin(Phase::other);
  for (std::int64_t t = 0; t < tokens; ++t) {
    device_->rms_norm(a_.x + t * hidden, w.embedding_norm.data, 1, hidden, epsilon,
                      a_.joined + 2 * t * row);
    device_->rms_norm(a_.states + t * hidden, w.state_norm.data, 1, hidden, epsilon,
                      a_.joined + (2 * t + 1) * row);
  }
  project({{w.projection, nullptr, a_.x}}, a_.joined, tokens);
  begin(Phase::other);
}

// The inputs are the mean of two things but for a factor: rows of a table, and projections of the
// embedding, normalised.
void Forward::make_layer_inputs(std::span<const Token> tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::int64_t layers = config_.attention.layers;
  const std::int64_t size = config_.layer_inputs.size;
  const std::int64_t all = layers * count * size;
  std::vector<Token> rows;
  rows.reserve(static_cast<std::size_t>(layers * count));
  for (std::int64_t l = 0; l < layers; ++l)
    for (const Token token : tokens) rows.push_back(static_cast<Token>(token * layers + l));
  device_->embed(weights_.layer_inputs, rows, a_.layer_rows);
  device_->scale(std::sqrt(static_cast<float>(size)), all, a_.layer_rows);
  device_->to_operand(a_.x, count * config_.hidden_size, a_.hidden);
  for (std::int64_t l = 0; l < layers; ++l) {
    project({{weights_.layers[static_cast<std::size_t>(l)].input_projection, nullptr,
              a_.layer_inputs + l * count * size}},
            a_.hidden, count);
  }
  begin(Phase::other);
  const auto width = static_cast<float>(config_.hidden_size);
  device_->scale(1 / std::sqrt(width), all, a_.layer_inputs);
  device_->head_norm(weights_.layer_inputs_norm.data, layers * count, size,
                     static_cast<float>(config_.rms_norm_eps), a_.layer_inputs);
  device_->add(a_.layer_rows, all, a_.layer_inputs);
  device_->scale(1 / std::sqrt(2.0F), all, a_.layer_inputs);
}

void Forward::add_layer_input(std::int64_t l, std::int64_t tokens) {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(l)];
  const std::int64_t values = tokens * config_.layer_inputs.size;
  begin(Phase::other);
  device_->to_operand(a_.x, tokens * config_.hidden_size, a_.hidden);
  project({{w.input_gate, nullptr, a_.layer_gate}}, a_.hidden, tokens);
  begin(Phase::other);
  device_->gelu_multiply(a_.layer_gate, a_.layer_inputs + l * values, values, a_.layer_gated);
  add_to_residual(w.input_output, {}, w.input_output_norm, a_.layer_gated, tokens, a_.x);
}

void Forward::mlp(const LayerWeights& w, std::int64_t tokens) {
  if (config_.mixture.own_norms && !w.mixture.empty()) return mlp_and_experts(w, tokens);
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t operand = bytes_of(device_->operand_dtype());
  const bool dense = w.down.out_features > 0;
  if (!dense && w.mixture.empty()) return;
  const std::int64_t most = dense ? mlp_tokens : mixture_tokens(config_.mixture);
  read_residual(w.mlp_norm, tokens);
  for (std::int64_t first = 0; first < tokens; first += most) {
    check_stop();
    const std::int64_t count = std::min(most, tokens - first);
    const std::int64_t values = count * w.up.out_features;
    const std::byte* x = a_.hidden + first * hidden * operand;
    if (!w.mixture.empty()) {
      mix(w.mixture, x, count, a_.x + first * hidden);
      if (config_.mixture.shared_intermediate_size > 0)
        shared_expert(w.mixture, x, count, a_.x + first * hidden);
    }
    if (!dense) continue;
    const Product up = {w.up, w.up_bias.data, a_.up};
    if (config_.has_mlp_gate()) {
      project({{w.gate, w.gate_bias.data, a_.gate}, up}, x, count);
    } else {
      project({up}, x, count);
    }
    activate(values);
    add_to_residual(w.down, w.down_bias, w.mlp_output_norm, a_.mlp, count, a_.x + first * hidden);
  }
}

void Forward::mlp_and_experts(const LayerWeights& w, std::int64_t tokens) {
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t operand = bytes_of(device_->operand_dtype());
  const auto epsilon = static_cast<float>(config_.rms_norm_eps);
  read_residual(w.mlp_norm, tokens);
  for (std::int64_t first = 0; first < tokens; first += mlp_tokens) {
    check_stop();
    const std::int64_t count = std::min(mlp_tokens, tokens - first);
    project({{w.gate, w.gate_bias.data, a_.gate}, {w.up, w.up_bias.data, a_.up}},
            a_.hidden + first * hidden * operand, count);
    activate(count * w.up.out_features);
    project({{w.down, w.down_bias.data, a_.mixed + first * hidden}}, a_.mlp, count);
  }
  begin(Phase::other);
  device_->head_norm(w.mixture.mlp_output_norm.data, tokens, hidden, epsilon, a_.mixed);
  const std::int64_t most = mixture_tokens(config_.mixture);
  for (std::int64_t first = 0; first < tokens; first += most) {
    check_stop();
    const std::int64_t count = std::min(most, tokens - first);
    const float* x = a_.x + first * hidden;
    begin(Phase::other);
    device_->rms_norm(x, w.mixture.router_norm.data, count, hidden, epsilon, a_.hidden);
    choose_experts(w.mixture, a_.hidden, count);
    device_->rms_norm(x, w.mixture.input_norm.data, count, hidden, epsilon, a_.hidden);
    device_->clear(count * hidden, a_.branch);
    run_experts(w.mixture, a_.hidden, count, a_.branch);
    device_->add_norm(a_.branch, w.mixture.output_norm.data, count, hidden, epsilon,
                      a_.mixed + first * hidden);
  }
  device_->add_norm(a_.mixed, w.mlp_output_norm.data, tokens, hidden, epsilon, a_.x);
}

void Forward::activate(std::int64_t values) {
  begin(Phase::other);
  switch (config_.activation) {
    case ModelConfig::Activation::silu:
      return device_->silu_multiply(a_.gate, a_.up, values, a_.mlp);
    case ModelConfig::Activation::gelu_tanh:
      return device_->gelu_multiply(a_.gate, a_.up, values, a_.mlp);
    case ModelConfig::Activation::relu_squared:
      return device_->relu_multiply(a_.up, a_.up, values, a_.mlp);
    case ModelConfig::Activation::clamped_silu:
      return device_->clamped_silu_multiply(
          a_.gate, a_.up, static_cast<float>(config_.swiglu_limit), values, a_.mlp);
  }
}

void Forward::read_residual(const Vector& weight, std::int64_t tokens) {
  if (config_.norm_inputs) {
    norm(weight, tokens);
  } else {
    begin(Phase::other);
    device_->to_operand(a_.x, tokens * config_.hidden_size, a_.hidden);
  }
}

void Forward::add_to_residual(const Matrix& weight, const Vector& bias, const Vector& norm,
                              const std::byte* operand, std::int64_t tokens, float* x) {
  if (!config_.norm_outputs) {
    project({{weight, bias.data, x}}, operand, tokens, true);
    return;
  }
  project({{weight, bias.data, a_.branch}}, operand, tokens);
  begin(Phase::other);
  device_->add_norm(a_.branch, norm.data, tokens, config_.hidden_size,
                    static_cast<float>(config_.rms_norm_eps), x);
}

void Forward::norm(const Vector& weight, std::int64_t tokens) {
  begin(Phase::other);
  const double scale = config_.residual_scale;  // of what the residual is divided by
  device_->rms_norm(a_.x, weight.data, tokens, config_.hidden_size,
                    static_cast<float>(config_.rms_norm_eps / (scale * scale)), a_.hidden);
}

void Forward::project(std::initializer_list<Product> products, const std::byte* x,
                      std::int64_t tokens, bool accumulate) {
  begin(Phase::matmul);
  device_->products({products.begin(), products.size()}, x, tokens, accumulate);
}

void fail_not_finite() {
  throw InvalidArgument(
      "the network gives logits that are NaN or infinite; expected numbers: its weights may be "
      "made for a wider range than the device computes in");
}

void Forward::make_logits(std::int64_t begin, std::int64_t rows) {
  const std::int64_t row = config_.hidden_size * bytes_of(device_->operand_dtype());
  clock_->begin(Phase::matmul);
  device_->matmul(weights_.lm_head, a_.hidden + begin * row, rows, false, a_.logits);
  clock_->end();
}

void Forward::states(std::int64_t begin, std::int64_t count, std::span<float> out) {
  const DType operand = device_->operand_dtype();
  const std::int64_t row = config_.hidden_size * bytes_of(operand);
  std::vector<std::byte> rows(static_cast<std::size_t>(count * row));
  const auto lock = device_->lock();
  device_->copy_out(a_.hidden + begin * row, count * row, rows.data());
  to_float(rows.data(), operand, count * config_.hidden_size, out.data());
}

void Forward::logits(std::int64_t begin, std::int64_t count, float* out) {
  const auto lock = device_->lock();
  const std::int64_t step = std::min(logit_rows, chunk_);
  for (std::int64_t done = 0; done < count; done += step) {
    const std::int64_t rows = std::min(step, count - done);
    make_logits(begin + done, rows);
    device_->copy_out(reinterpret_cast<const std::byte*>(a_.logits),
                      rows * config_.vocab_size * bytes_of(DType::f32),
                      out + done * config_.vocab_size);
  }
  const auto each = [&](const auto& change) {
    parallel_for_alone(
        count * config_.vocab_size, cap_grain,
        [&](std::int64_t first, std::int64_t end) { change(out + first, end - first); });
  };
  if (config_.logit_scale != 1) {
    const auto scale = static_cast<float>(config_.logit_scale);
    each([&](float* x, std::int64_t values) { scale_by(x, values, scale); });
  }
  if (config_.final_softcap == 0) return;
  each([&](float* x, std::int64_t values) {
    soft_cap(x, values, static_cast<float>(config_.final_softcap));
  });
}

// The scale and the cap keep the order of logits.
void Forward::best(std::int64_t begin, std::span<Token> best) {
  const auto lock = device_->lock();
  const std::int64_t row = config_.hidden_size * bytes_of(device_->operand_dtype());
  const auto count = std::ssize(best);
  const std::int64_t step = std::min(logit_rows, chunk_);
  for (std::int64_t done = 0; done < count; done += step) {
    const std::int64_t rows = std::min(step, count - done);
    clock_->begin(Phase::matmul);
    device_->matmul(weights_.lm_head, a_.hidden + (begin + done) * row, rows, false, a_.logits);
    clock_->end();
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* logits = a_.logits + i * config_.vocab_size;
      Token& token = best[static_cast<std::size_t>(done + i)];
      token = device_->argmax(logits, config_.vocab_size);
      if (token != 0) continue;
      float logit = 0;  // of those that are no numbers the first is the best
      device_->copy_out(reinterpret_cast<const std::byte*>(logits), bytes_of(DType::f32), &logit);
      if (std::isnan(logit)) fail_not_finite();
    }
  }
}

ForwardTimes Forward::times() const {
  const PhaseSeconds seconds = clock_->seconds();
  ForwardTimes times;
  times.matmul = seconds[static_cast<std::size_t>(Phase::matmul)];
  times.attention = seconds[static_cast<std::size_t>(Phase::attention)];
  times.other = seconds[static_cast<std::size_t>(Phase::other)];
  return times;
}

}  // namespace topkv
