// Multi-head latent attention in the forward pass, with the projections from latents absorbed
// (DeepSeek-V2, arXiv 2405.04434, section 2.1.2):
//
//     row of a token       [RMSNorm(W_latent x) | RoPE(W_rope x)]
//     query of a head      [W_keys^T q_nope     | RoPE(q_rope)]
//     output of a head     W_values (first kv_rank elements of what attention gives)
#include <numeric>

#include "src/core/threads/stopping.h"
#include "src/model/network/forward.h"

namespace topkv {
namespace {

constexpr float latent_epsilon = 1e-6F;  // transformers' norms of latents, whatever rms_norm_eps is

}  // namespace

void Forward::number_heads() {
  const std::int64_t heads = config_.attention.q_heads;
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(heads));
  std::iota(numbers.begin(), numbers.end(), 0);
  device_->copy_in(numbers.data(), heads * std::int64_t{sizeof(std::int32_t)},
                   reinterpret_cast<std::byte*>(a_.head_numbers));
  head_ends_.resize(static_cast<std::size_t>(heads));
}

void Forward::latent_inputs(std::int64_t l, std::int64_t tokens) {
  const LatentWeights& w = weights_.layers[static_cast<std::size_t>(l)].latent;
  for (std::int64_t first = 0; first < tokens; first += latent_tokens) {
    check_stop();
    const std::int64_t count = std::min(latent_tokens, tokens - first);
    latent_rows(w, first, count);
    latent_queries(w, first, count);
  }
}

void Forward::latent_rows(const LatentWeights& w, std::int64_t first, std::int64_t count) {
  const LatentAttention& net = config_.latent;
  const std::int64_t row = config_.attention.head_dim;
  const std::byte* const x =
      a_.hidden + first * config_.hidden_size * bytes_of(device_->operand_dtype());
  project({{w.latent, w.latent_bias.data, a_.latent}, {w.rope_key, w.rope_bias.data, a_.rope_key}},
          x, count);
  begin(Phase::other);
  device_->head_norm(w.kv_norm.data, count, net.kv_rank, latent_epsilon, a_.latent);
  device_->rope(angles_from(first), count, 1, net.rope_dim, a_.rope_key);
  float* const k = a_.k + first * row;
  device_->copy_runs(
      a_.latent,
      {.rows = count, .columns = 1, .width = net.kv_rank, .from_row = net.kv_rank, .to_row = row},
      k);
  device_->copy_runs(
      a_.rope_key,
      {.rows = count, .columns = 1, .width = net.rope_dim, .from_row = net.rope_dim, .to_row = row},
      k + net.kv_rank);
}

void Forward::latent_queries(const LatentWeights& w, std::int64_t first, std::int64_t count) {
  const LatentAttention& net = config_.latent;
  const std::int64_t row = config_.attention.head_dim;
  const std::int64_t heads = config_.attention.q_heads;
  const std::int64_t query = net.query_dim();
  const std::byte* x = a_.hidden + first * config_.hidden_size * bytes_of(device_->operand_dtype());
  if (net.q_rank > 0) {
    project({{w.q_latent, w.q_latent_bias.data, a_.q_latent}}, x, count);
    begin(Phase::other);
    device_->rms_norm(a_.q_latent, w.q_norm.data, count, net.q_rank, latent_epsilon, a_.q_operand);
    x = a_.q_operand;
  }
  project({{w.q, nullptr, a_.head_q}}, x, count);
  begin(Phase::other);
  // What RoPE turns lies behind the other elements of each head.
  device_->rope(angles_from(first), count, heads, query, a_.head_q + net.nope_dim);
  device_->copy_runs(a_.head_q,
                     {.rows = count,
                      .columns = heads,
                      .width = net.nope_dim,
                      .from_row = heads * query,
                      .from_column = query,
                      .to_row = net.nope_dim,
                      .to_column = count * net.nope_dim},
                     a_.head_values);
  multiply_heads(w.keys, count);
  float* const q = a_.q + first * heads * row;
  device_->copy_runs(a_.head_products,
                     {.rows = count,
                      .columns = heads,
                      .width = net.kv_rank,
                      .from_row = net.kv_rank,
                      .from_column = count * net.kv_rank,
                      .to_row = heads * row,
                      .to_column = row},
                     q);
  device_->copy_runs(a_.head_q + net.nope_dim,
                     {.rows = count,
                      .columns = heads,
                      .width = net.rope_dim,
                      .from_row = heads * query,
                      .from_column = query,
                      .to_row = heads * row,
                      .to_column = row},
                     q + net.kv_rank);
}

void Forward::latent_values(const LatentWeights& w, std::int64_t tokens) {
  const LatentAttention& net = config_.latent;
  const std::int64_t row = config_.attention.head_dim;
  const std::int64_t heads = config_.attention.q_heads;
  const std::int64_t values = heads * net.value_dim;
  for (std::int64_t first = 0; first < tokens; first += latent_tokens) {
    check_stop();
    const std::int64_t count = std::min(latent_tokens, tokens - first);
    begin(Phase::other);
    device_->copy_runs(a_.attended + first * heads * row,
                       {.rows = count,
                        .columns = heads,
                        .width = net.kv_rank,
                        .from_row = heads * row,
                        .from_column = row,
                        .to_row = net.kv_rank,
                        .to_column = count * net.kv_rank},
                       a_.head_values);
    multiply_heads(w.values, count);
    device_->copy_runs(a_.head_products,
                       {.rows = count,
                        .columns = heads,
                        .width = net.value_dim,
                        .from_row = net.value_dim,
                        .from_column = count * net.value_dim,
                        .to_row = values,
                        .to_column = net.value_dim},
                       a_.head_values);
    device_->to_operand(a_.head_values, count * values,
                        a_.heads + first * values * bytes_of(device_->operand_dtype()));
  }
}

void Forward::multiply_heads(const ExpertMatrices& weights, std::int64_t tokens) {
  const std::int64_t heads = config_.attention.q_heads;
  const std::int64_t rows = heads * tokens;
  device_->to_operand(a_.head_values, rows * weights.form.in_features, a_.head_operand);
  begin(Phase::matmul);
  const ExpertProduct product[] = {{&weights, nullptr, a_.head_products}};
  // The step of one token may be recorded: it has a row for each head, in the order of heads.
  ExpertRows of{a_.head_numbers, rows, {}};
  if (tokens > 1) {
    for (std::int64_t h = 0; h < heads; ++h)
      head_ends_[static_cast<std::size_t>(h)] = (h + 1) * tokens;
    of = {nullptr, rows, head_ends_};
  }
  device_->expert_products(product, a_.head_operand, 1, of);
  begin(Phase::other);
}

}  // namespace topkv
