#include "src/model/forward.h"

#include "src/core/stopwatch.h"

namespace topkv {
namespace {

/// Adds the time of a scope to a counter.
class ScopeTime {
 public:
  explicit ScopeTime(double& total) : total_(total) {}
  ~ScopeTime() { total_ += watch_.seconds(); }
  ScopeTime(const ScopeTime&) = delete;  // belongs to one scope
  ScopeTime& operator=(const ScopeTime&) = delete;

 private:
  double& total_;
  Stopwatch watch_;
};

}  // namespace

Forward::Forward(const ModelConfig& config, const Weights& weights, const ComputeDevice& device)
    : config_(config), weights_(weights), device_(device), rope_(config) {}

const float* Forward::run(std::span<const Token> tokens, std::int64_t first,
                          const AttendFn& attend) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const auto size = [count](std::int64_t width) { return static_cast<std::size_t>(count * width); };
  const AttentionShape& shape = config_.attention;
  x_.resize(size(config_.hidden_size));
  normed_.resize(size(config_.hidden_size));
  q_.resize(size(shape.q_heads * shape.head_dim));
  k_.resize(size(shape.kv_heads * shape.head_dim));
  v_.resize(size(shape.kv_heads * shape.head_dim));
  attended_.resize(size(shape.q_heads * shape.head_dim));
  gate_.resize(size(config_.intermediate_size));
  up_.resize(size(config_.intermediate_size));
  RopeAngles angles;
  {
    const ScopeTime time(times_.other);
    angles = rope_.angles(first, count);
    device_.embed(weights_.embedding, tokens, x_.data());
  }
  for (std::int64_t l = 0; l < shape.layers; ++l) layer(l, count, angles, attend);
  const ScopeTime time(times_.other);
  device_.rms_norm(x_.data(), weights_.final_norm.data(), count, config_.hidden_size,
                   static_cast<float>(config_.rms_norm_eps), x_.data());
  return x_.data();
}

void Forward::layer(std::int64_t l, std::int64_t tokens, const RopeAngles& angles,
                    const AttendFn& attend) {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(l)];
  const AttentionShape& shape = config_.attention;
  const auto norm = [&](const std::vector<float>& weight, std::int64_t rows, const float* x,
                        float* out) {
    const ScopeTime time(times_.other);
    device_.rms_norm(x, weight.data(), rows, static_cast<std::int64_t>(weight.size()),
                     static_cast<float>(config_.rms_norm_eps), out);
  };
  const auto rotate = [&](std::vector<float>& x, std::int64_t heads) {
    const ScopeTime time(times_.other);
    device_.rope(angles, tokens, heads, shape.head_dim, x.data());
  };

  norm(w.input_norm, tokens, x_.data(), normed_.data());
  project(w.q, w.q_bias, normed_.data(), tokens, q_);
  project(w.k, w.k_bias, normed_.data(), tokens, k_);
  project(w.v, w.v_bias, normed_.data(), tokens, v_);
  if (config_.qk_norm) {
    norm(w.q_norm, tokens * shape.q_heads, q_.data(), q_.data());
    norm(w.k_norm, tokens * shape.kv_heads, k_.data(), k_.data());
  }
  rotate(q_, shape.q_heads);
  rotate(k_, shape.kv_heads);
  {
    const ScopeTime time(times_.attention);
    attend(l, q_.data(), k_.data(), v_.data(), attended_.data(), tokens);
  }
  project(w.o, w.o_bias, attended_.data(), tokens, x_, true);

  norm(w.mlp_norm, tokens, x_.data(), normed_.data());
  project(w.gate, w.gate_bias, normed_.data(), tokens, gate_);
  project(w.up, w.up_bias, normed_.data(), tokens, up_);
  {
    const ScopeTime time(times_.other);
    device_.silu_multiply(up_.data(), tokens * config_.intermediate_size, gate_.data());
  }
  project(w.down, w.down_bias, gate_.data(), tokens, x_, true);
}

void Forward::project(const Matrix& weight, const std::vector<float>& bias, const float* x,
                      std::int64_t tokens, std::vector<float>& out, bool accumulate) {
  {
    const ScopeTime time(times_.matmul);
    device_.matmul(weight, x, tokens, accumulate, out.data());
  }
  if (bias.empty()) return;
  const ScopeTime time(times_.other);
  device_.add_bias(bias.data(), tokens, weight.out_features, out.data());
}

void Forward::logits(const float* hidden, std::int64_t rows, float* out) {
  const ScopeTime time(times_.matmul);
  device_.matmul(weights_.lm_head, hidden, rows, false, out);
}

}  // namespace topkv
