// Mixtures of experts in the forward pass.
#include "src/model/network/forward.h"

namespace topkv {

void Forward::mix(const MixtureWeights& w, const std::byte* operand, std::int64_t tokens,
                  float* x) {
  choose_experts(w, operand, tokens);
  run_experts(w, operand, tokens, x);
}

void Forward::choose_experts(const MixtureWeights& w, const std::byte* operand,
                             std::int64_t tokens) {
  const ExpertMixture& mixture = config_.mixture;
  const std::int64_t k = mixture.per_token;
  project({{w.router, w.router_bias.data, a_.scores}}, operand, tokens);
  begin(Phase::other);
  const Routing routing{.experts = mixture.experts,
                        .k = k,
                        .over_all = mixture.softmax_over_all,
                        .sigmoid = mixture.sigmoid,
                        .sums_to_one = mixture.sums_to_one,
                        .least_sum = static_cast<float>(mixture.least_sum),
                        .scale = static_cast<float>(mixture.scale),
                        .groups = mixture.groups,
                        .chosen_groups = mixture.chosen_groups,
                        .choice_bias = w.choice_bias.data};
  device_->route(a_.scores, tokens, routing, a_.chosen, a_.shares);
  if (!w.expert_scales.empty())
    device_->scale_by_expert(w.expert_scales.data, a_.chosen, tokens * k, a_.shares);
}

void Forward::run_experts(const MixtureWeights& w, const std::byte* operand, std::int64_t tokens,
                          float* x) {
  const ExpertMixture& mixture = config_.mixture;
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t k = mixture.per_token;
  ExpertRows rows{a_.chosen, tokens * k, {}};
  std::int64_t sharing = k;
  const std::int32_t* places = nullptr;
  // Slots one by one read as many experts' weights as there are slots; sorted, each is read once,
  // but the host has to see who chose whom. One token's step, which may be recorded, has no more
  // slots than there are experts.
  if (rows.count > mixture.experts) {
    experts_.resize(static_cast<std::size_t>(rows.count));
    const std::int64_t bytes = rows.count * std::int64_t{sizeof(std::int32_t)};
    device_->copy_out(reinterpret_cast<const std::byte*>(a_.chosen), bytes, experts_.data());
    sorted_.sort(experts_, mixture.experts);
    device_->copy_in(sorted_.slots.data(), bytes, reinterpret_cast<std::byte*>(a_.slots));
    device_->copy_in(sorted_.places.data(), bytes, reinterpret_cast<std::byte*>(a_.places));
    device_->gather(operand, a_.slots, rows.count, sharing, hidden, a_.gathered);
    rows = {nullptr, rows.count, sorted_.ends};
    operand = a_.gathered;
    sharing = 1;
    places = a_.places;
  }
  const ExpertProduct gate_up[] = {{&w.gate, w.gate_biases.data, a_.gate},
                                   {&w.up, w.up_biases.data, a_.up}};
  const std::span inputs = std::span(gate_up).subspan(config_.has_mlp_gate() ? 0 : 1);
  const ExpertProduct down[] = {{&w.down, w.down_biases.data, a_.parts}};
  begin(Phase::matmul);
  device_->expert_products(inputs, operand, sharing, rows);
  activate(rows.count * mixture.intermediate_size);
  begin(Phase::matmul);
  device_->expert_products(down, a_.mlp, 1, rows);
  begin(Phase::other);
  device_->add_weighted(a_.parts, a_.shares, places, tokens, k, hidden, x);
}

void Forward::shared_expert(const MixtureWeights& w, const std::byte* operand, std::int64_t tokens,
                            float* x) {
  const std::int64_t width = config_.mixture.shared_intermediate_size;
  if (config_.mixture.shared_gate) {
    project({{w.shared_gate, nullptr, a_.gate},
             {w.shared_up, nullptr, a_.up},
             {w.shared_weight, nullptr, a_.shared_weight}},
            operand, tokens);
    begin(Phase::other);
    device_->scale_rows(a_.shared_weight, tokens, width, a_.up);
  } else if (config_.has_mlp_gate()) {
    project({{w.shared_gate, nullptr, a_.gate}, {w.shared_up, nullptr, a_.up}}, operand, tokens);
  } else {
    project({{w.shared_up, nullptr, a_.up}}, operand, tokens);
  }
  activate(tokens * width);
  project({{w.shared_down, nullptr, x}}, a_.mlp, tokens, true);
}

}  // namespace topkv
