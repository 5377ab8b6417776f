#include "src/device/host/mamba2.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/core/math/gated_delta.h"
#include "src/core/threads/threads.h"
#include "src/device/host/convolved_inputs.h"
#include "src/device/host/recurrent_step.h"

namespace topkv {

void mamba2_on_host(const Mamba2& net, const Mamba2Step& given) {
  const Mamba2Step step = placed(given);
  const std::int64_t width = net.input_width();
  const std::int64_t before = net.kernel - 1;
  float* const mixed = step.room;
  float* const decays = mixed + step.tokens * width;
  float* const rates = decays + step.tokens * net.heads;
  const ConvolvedInputs inputs(step.xbc, step.state, width, before);
  parallel_for(step.tokens, 4, [&](std::int64_t begin, std::int64_t end) {
    std::vector<const float*> rows(static_cast<std::size_t>(net.kernel));
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t j = 0; j < net.kernel; ++j)
        rows[static_cast<std::size_t>(j)] = inputs.of(t - before + j);
      convolve_silu(rows.data(), step.kernel, step.bias, net.kernel, width, mixed + t * width);
      for (std::int64_t h = 0; h < net.heads; ++h) {
        const std::int64_t at = t * net.heads + h;
        rates[at] = softplus(step.dt[at] + step.time_bias[h]);
        decays[at] = std::exp(step.fading[h] * rates[at]);
      }
    }
  });
  for (std::int64_t j = 0; j < before; ++j)
    std::copy_n(inputs.of(step.tokens - before + j), width, step.next_state + j * width);
  parallel_for(net.heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t h = begin; h < end; ++h) {
      const std::int64_t group = h / (net.heads / net.groups) * net.state_dim;
      const std::int64_t matrix = net.matrices_at() + h * net.state_dim * net.head_dim;
      const float* const x = mixed + h * net.head_dim;
      float* const out = step.out + h * net.head_dim;
      delta_rule({.tokens = step.tokens,
                  .key_dim = net.state_dim,
                  .value_dim = net.head_dim,
                  .q = mixed + net.width() + net.groups * net.state_dim + group,
                  .k = mixed + net.width() + group,
                  .v = x,
                  .stride = width,
                  .decay = decays + h,
                  .rate = rates + h,
                  .gate_stride = net.heads,
                  .corrects = false,
                  .out = out,
                  .out_stride = net.width()},
                 step.state == nullptr ? nullptr : step.state + matrix, step.next_state + matrix);
      for (std::int64_t t = 0; t < step.tokens; ++t) {
        for (std::int64_t i = 0; i < net.head_dim; ++i)
          out[t * net.width() + i] += step.skip[h] * x[t * width + i];
      }
    }
  });
}

}  // namespace topkv
