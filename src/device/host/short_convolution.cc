#include "src/device/host/short_convolution.h"

#include <algorithm>
#include <vector>

#include "src/core/threads/threads.h"
#include "src/device/host/recurrent_step.h"

namespace topkv {
namespace {

/// to[c] += weights[c] a[c] b[c], for `width` channels.
void add_products(const float* weights, const float* a, const float* b, std::int64_t width,
                  float* to) {
  for (std::int64_t c = 0; c < width; ++c) to[c] += weights[c] * (a[c] * b[c]);
}

}  // namespace

void short_convolution_on_host(const ShortConvolution& net, const ShortConvolutionStep& given) {
  const ShortConvolutionStep step = placed(given);
  const std::int64_t width = net.width;
  const std::int64_t before = net.kernel - 1;
  const auto b_of = [&](std::int64_t token) { return step.bcx + token * net.input_width(); };
  parallel_for(step.tokens, 16, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> sum(static_cast<std::size_t>(width));
    for (std::int64_t t = begin; t < end; ++t) {
      std::ranges::fill(sum, 0.0F);
      for (std::int64_t j = 0; j < net.kernel; ++j) {
        const std::int64_t from = t - before + j;
        const float* const weights = step.kernel + j * width;
        if (from >= 0) {
          add_products(weights, b_of(from), b_of(from) + 2 * width, width, sum.data());
        } else if (step.state != nullptr) {
          const float* const seen = step.state + (before + from) * width;
          for (std::int64_t c = 0; c < width; ++c)
            sum[static_cast<std::size_t>(c)] += weights[c] * seen[c];
        }
      }
      const float* const by = b_of(t) + width;
      float* const out = reinterpret_cast<float*>(step.out) + t * width;
      for (std::int64_t c = 0; c < width; ++c) out[c] = by[c] * sum[static_cast<std::size_t>(c)];
    }
  });
  for (std::int64_t j = 0; j < before; ++j) {
    const std::int64_t from = step.tokens - before + j;
    float* const to = step.next_state + j * width;
    if (from < 0 && step.state != nullptr) {
      std::copy_n(step.state + (before + from) * width, width, to);
    } else if (from < 0) {
      std::fill_n(to, width, 0.0F);
    } else {
      for (std::int64_t c = 0; c < width; ++c) to[c] = b_of(from)[c] * b_of(from)[2 * width + c];
    }
  }
}

}  // namespace topkv
