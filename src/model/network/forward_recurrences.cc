// Recurrent layers in the forward pass: where their states are found and kept, and what each kind
// of recurrence does with a token.
#include <algorithm>
#include <utility>

#include "src/core/threads/stopping.h"
#include "src/device/gated_delta.h"
#include "src/device/mamba2.h"
#include "src/device/short_convolution.h"
#include "src/model/network/forward.h"

namespace topkv {

Forward::RecurrentWidths Forward::recurrent_widths(const ModelConfig& config) {
  if (const ShortConvolution& net = config.convolution; net.width > 0)
    return {.in = net.input_width(), .heads = net.width};
  if (const Mamba2& net = config.mamba; net.heads > 0) {
    return {.in = net.input_width(),
            .gate = net.width(),
            .rates = net.heads,
            .room = mamba2_room(net, 1),
            .out = net.width(),
            .heads = net.width()};
  }
  const GatedDeltaNet& net = config.delta;
  return {.in = net.qkv_width(),
          .gate = net.value_width(),
          .rates = 2 * net.value_heads,
          .room = gated_delta_room(net, 1),
          .out = net.value_width(),
          .heads = net.value_width()};
}

void Forward::recurrence_inputs(const LayerWeights& w, std::int64_t first, std::int64_t count) {
  const std::int64_t row = config_.hidden_size * bytes_of(device_->operand_dtype());
  const std::byte* const x = a_.hidden + first * row;
  if (!w.convolution.empty()) {
    project({{w.convolution.in, nullptr, a_.recurrent_in}}, x, count);
  } else if (!w.mamba.empty()) {
    project({{w.mamba.xbc, nullptr, a_.recurrent_in}, {w.mamba.z, nullptr, a_.recurrent_gate}}, x,
            count);
    project({{w.mamba.dt, nullptr, a_.recurrent_rates}}, x, count);
  } else {
    project({{w.delta.qkv, nullptr, a_.recurrent_in}, {w.delta.z, nullptr, a_.recurrent_gate}}, x,
            count);
    if (!takes_all(w)) project({{w.delta.gates, nullptr, a_.recurrent_rates}}, x, count);
  }
}

void Forward::take_tokens(const LayerWeights& w, std::int64_t at, std::int64_t tokens,
                          const StatePlaces& states) {
  const RecurrentWidths widths = recurrent_widths(config_);
  const float* const in = a_.recurrent_in + at * widths.in;
  if (!w.convolution.empty()) {
    ShortConvolutionStep step;
    step.tokens = tokens;
    step.bcx = in;
    step.kernel = w.convolution.kernel.data;
    step.state = states.before;
    step.next_state = states.after;
    step.states = states.table;
    step.out = a_.recurrent_heads + at * widths.heads * bytes_of(device_->operand_dtype());
    return device_->short_convolution(config_.convolution, step);
  }
  if (!w.mamba.empty()) {
    Mamba2Step step;
    step.tokens = tokens;
    step.xbc = in;
    step.dt = a_.recurrent_rates + at * widths.rates;
    step.kernel = w.mamba.kernel.data;
    step.bias = w.mamba.bias.data;
    step.fading = w.mamba.fading.data;
    step.time_bias = w.mamba.time_bias.data;
    step.skip = w.mamba.skip.data;
    step.state = states.before;
    step.next_state = states.after;
    step.states = states.table;
    step.room = a_.recurrent_room;
    step.out = a_.recurrent_out + at * widths.out;
    return device_->mamba2(config_.mamba, step);
  }
  GatedDeltaStep step;
  step.tokens = tokens;
  step.qkv = in;
  step.gates = a_.recurrent_rates + at * widths.rates;
  step.kernel = w.delta.kernel.data;
  step.fading = w.delta.fading.data;
  step.time_bias = w.delta.time_bias.data;
  step.state = states.before;
  step.next_state = states.after;
  step.states = states.table;
  step.room = a_.recurrent_room;
  step.out = a_.recurrent_out + at * widths.out;
  if (!takes_all(w)) return device_->gated_delta(config_.delta, step);
  device_->gated_delta_token(config_.delta, {.step = step,
                                             .gate_weights = &w.delta.gates,
                                             .x = a_.hidden,
                                             .gates = a_.recurrent_rates,
                                             .z = a_.recurrent_gate,
                                             .norm = w.delta.norm.data,
                                             .epsilon = static_cast<float>(config_.rms_norm_eps),
                                             .out = a_.recurrent_heads});
}

void Forward::recurrence_output(const LayerWeights& w, std::int64_t first, std::int64_t count) {
  const auto epsilon = static_cast<float>(config_.rms_norm_eps);
  begin(Phase::other);
  if (!w.mamba.empty()) {
    const Mamba2& net = config_.mamba;
    device_->norm_gated(a_.recurrent_out, a_.recurrent_gate, w.mamba.norm.data, count, net.width(),
                        net.groups, epsilon, a_.recurrent_heads);
  } else if (!w.delta.empty() && !takes_all(w)) {
    const GatedDeltaNet& net = config_.delta;
    device_->gated_norm(a_.recurrent_out, a_.recurrent_gate, w.delta.norm.data,
                        count * net.value_heads, net.value_dim, epsilon, a_.recurrent_heads);
  }
  const Matrix& out = !w.delta.empty()   ? w.delta.out
                      : !w.mamba.empty() ? w.mamba.out
                                         : w.convolution.out;
  add_to_residual(out, {}, w.attention_norm, a_.recurrent_heads, count,
                  a_.x + first * config_.hidden_size);
}

const float* Forward::state_here(const StateMemory* state) {
  if (state == nullptr) return nullptr;
  if (state->on_host() != device_->is_cuda()) return state->data();
  device_->copy_in(state->data(), config_.state_size() * bytes_of(DType::f32),
                   reinterpret_cast<std::byte*>(a_.recurrent_states[0]));
  return a_.recurrent_states[0];
}

std::shared_ptr<StateMemory> Forward::next_state(const TextLayers& layers, std::int64_t text,
                                                 std::int64_t l) {
  std::shared_ptr<StateMemory> spare = layers.spare(text, l);
  if (spare != nullptr && spare->on_host() != device_->is_cuda()) return spare;
  return device_->make_state(config_.state_size());
}

void Forward::find_states(const TextLayers& layers) {
  const AttentionShape& shape = config_.attention;
  if (shape.state_size.empty()) return;
  states_.resize(static_cast<std::size_t>(shape.layers));
  std::vector<const float*> table(static_cast<std::size_t>(2 * shape.layers));
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    if (shape.is_attention(l)) continue;
    States& of = states_[static_cast<std::size_t>(l)];
    of.before = layers.state(0, l);
    if (of.before != nullptr && of.before->on_host()) {
      const auto here = device_->make_state(config_.state_size());
      device_->copy_in(of.before->data(), config_.state_size() * bytes_of(DType::f32),
                       reinterpret_cast<std::byte*>(here->data()));
      of.before = here;
    }
    of.after = next_state(layers, 0, l);
    const auto at = static_cast<std::size_t>(2 * l);
    table[at] = of.before == nullptr ? nullptr : std::as_const(*of.before).data();
    table[at + 1] = of.after->data();
  }
  device_->copy_in(table.data(), std::ssize(table) * std::int64_t{sizeof(float*)},
                   reinterpret_cast<std::byte*>(a_.state_table));
}

void Forward::keep_states(const TextLayers& layers) {
  for (std::size_t l = 0; l < states_.size(); ++l) {
    States of = std::exchange(states_[l], {});
    if (of.after == nullptr) continue;
    of.before.reset();
    layers.advance(0, static_cast<std::int64_t>(l), 1, std::move(of.after));
  }
}

void Forward::recur(std::int64_t l, std::int64_t tokens, std::int64_t texts,
                    const TextLayers& layers) {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(l)];
  const bool in_pieces = tokens > recurrent_tokens;
  const std::int64_t of_text = tokens / texts;
  States states;
  const float* state = nullptr;
  for (std::int64_t first = 0; first < tokens; first += recurrent_tokens) {
    check_stop();
    const std::int64_t count = std::min(recurrent_tokens, tokens - first);
    if (in_pieces) recurrence_inputs(w, first, count);
    begin(Phase::attention);
    for (std::int64_t at = 0; at < count;) {
      const std::int64_t text = (first + at) / of_text;
      const std::int64_t end = (text + 1) * of_text;
      const std::int64_t some = std::min(count - at, end - first - at);
      if (first + at == text * of_text) {
        states = {layers.state(text, l), next_state(layers, text, l)};
        state = state_here(states.before.get());
      }
      const bool last = first + at + some == end;
      float* const next = last ? states.after->data()
                               : a_.recurrent_states[state == a_.recurrent_states[0] ? 1 : 0];
      take_tokens(w, at, some, {state, next, nullptr});
      at += some;
      state = next;
      if (last) layers.advance(text, l, of_text, std::move(states.after));
    }
    if (in_pieces) recurrence_output(w, first, count);
  }
}

}  // namespace topkv
