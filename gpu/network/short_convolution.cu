// Short convolutions: a thread has one channel of some tokens.
#include "gpu/network/short_convolution.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

/// b x of a token, from 1 - kernel on.
struct Products {
  const float* bcx;
  const float* state;  // null: zeros
  std::int64_t width, before;

  __device__ float of(std::int64_t token, std::int64_t channel) const {
    if (token >= 0) {
      const float* const b = bcx + token * 3 * width + channel;
      return b[0] * b[2 * width];
    }
    return state == nullptr ? 0.0F : state[(before + token) * width + channel];
  }
};

// grid: (channels / block, tokens). The first row of blocks keeps the state.
__global__ void short_convolution_kernel(ShortConvolution net, ShortConvolutionStep step) {
  await_previous();
  if (step.states != nullptr) {  // of a recorded step, where they stand now
    step.state = step.states[0];
    step.next_state = const_cast<float*>(step.states[1]);
  }
  const std::int64_t c = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c >= net.width) return;
  const std::int64_t before = net.kernel - 1;
  const Products products{step.bcx, step.state, net.width, before};
  auto* const out = reinterpret_cast<__nv_bfloat16*>(step.out);
  for (std::int64_t t = blockIdx.y; t < step.tokens; t += gridDim.y) {
    float sum = 0;
    for (std::int64_t j = 0; j < net.kernel; ++j)
      sum += step.kernel[j * net.width + c] * products.of(t - before + j, c);
    store(out + t * net.width + c, step.bcx[(3 * t + 1) * net.width + c] * sum);
  }
  if (blockIdx.y != 0) return;
  for (std::int64_t j = 0; j < before; ++j)
    step.next_state[j * net.width + c] = products.of(step.tokens - before + j, c);
}

}  // namespace

void short_convolution(const ShortConvolution& net, const ShortConvolutionStep& step,
                       cudaStream_t stream) {
  if (step.tokens == 0) return;
  const dim3 grid(static_cast<unsigned>((net.width - 1) / block + 1),
                  static_cast<unsigned>(min(step.tokens, std::int64_t{4096})));
  launch_overlapped(short_convolution_kernel, grid, block, 0, stream, net, step);
  check_launch("the short convolution kernel");
}

}  // namespace topkv::gpu
