#include "src/device/host/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/core/math/gated_delta.h"
#include "src/core/threads/threads.h"
#include "src/device/gated_delta.h"
#include "src/device/host/convolved_inputs.h"
#include "src/device/host/recurrent_step.h"

namespace topkv {
namespace {

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

void gated_delta_on_host(const GatedDeltaNet& net, const GatedDeltaStep& given) {
  const GatedDeltaStep step = placed(given);
  const std::int64_t width = net.qkv_width();
  const std::int64_t heads = net.value_heads;
  float* const mixed = step.room;
  float* const decays = mixed + step.tokens * width;
  float* const rates = decays + step.tokens * heads;
  const ConvolvedInputs inputs(step.qkv, step.state, width, net.kernel - 1);
  const float query_scale = 1 / std::sqrt(static_cast<float>(net.key_dim));
  parallel_for(step.tokens, 4, [&](std::int64_t begin, std::int64_t end) {
    std::vector<const float*> rows(static_cast<std::size_t>(net.kernel));
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t j = 0; j < net.kernel; ++j)
        rows[static_cast<std::size_t>(j)] = inputs.of(t - net.kernel + 1 + j);
      float* const token = mixed + t * width;
      convolve_silu(rows.data(), step.kernel, nullptr, net.kernel, width, token);
      for (std::int64_t h = 0; h < net.key_heads; ++h) {
        float* const q = token + h * net.key_dim;
        normalise(q, net.key_dim, delta_norm_epsilon, query_scale);
        normalise(q + net.key_width(), net.key_dim, delta_norm_epsilon, 1);
      }
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t at = t * heads + h;
        const float* const gates = step.gates + 2 * t * heads + h;
        decays[at] = std::exp(step.fading[h] * softplus(gates[heads] + step.time_bias[h]));
        rates[at] = sigmoid(gates[0]);
      }
    }
  });
  for (std::int64_t j = 0; j < net.kernel - 1; ++j)
    std::copy_n(inputs.of(step.tokens - net.kernel + 1 + j), width, step.next_state + j * width);
  parallel_for(heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t h = begin; h < end; ++h) {
      const std::int64_t key = net.key_head_of(h) * net.key_dim;
      const std::int64_t matrix = net.matrices_at() + h * net.key_dim * net.value_dim;
      delta_rule({.tokens = step.tokens,
                  .key_dim = net.key_dim,
                  .value_dim = net.value_dim,
                  .q = mixed + key,
                  .k = mixed + net.key_width() + key,
                  .v = mixed + 2 * net.key_width() + h * net.value_dim,
                  .stride = width,
                  .decay = decays + h,
                  .rate = rates + h,
                  .gate_stride = heads,
                  .out = step.out + h * net.value_dim,
                  .out_stride = net.value_width()},
                 step.state == nullptr ? nullptr : step.state + matrix, step.next_state + matrix);
    }
  });
}

}  // namespace topkv
