// Mamba-2: a kernel for the convolution and the rates of all tokens of a step, then one in which
// each block has some columns of a head's matrix, in registers, for the whole step. Columns go
// their own ways: column i of S meets element i of x, and B and C of the head's group.
#include "gpu/network/mamba2.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

constexpr int parts = 4;     // threads of a column, each with a quarter of its rows
constexpr int columns = 32;  // of a block
constexpr int scan_threads = parts * columns;
constexpr int tile = 8;  // tokens that are in shared memory at a time

/// Of a recorded step, the places of the states as they stand now.
__device__ Mamba2Step placed(Mamba2Step step) {
  if (step.states == nullptr) return step;
  step.state = step.states[0];
  step.next_state = const_cast<float*>(step.states[1]);
  return step;
}

/// What the tokens of a step, and those before it, gave to the convolution.
struct Inputs {
  const float* given;
  const float* state;  // null: zeros
  std::int64_t width, before;

  __device__ float of(std::int64_t token, std::int64_t channel) const {
    if (token >= 0) return given[token * width + channel];
    return state == nullptr ? 0.0F : state[(before + token) * width + channel];
  }
};

// A thread has a channel of some tokens, or, behind the channels, the rates of a head. grid:
// (channels and heads / block, tokens). The first row of blocks keeps the inputs that the next step
// sees.
__global__ void mix_kernel(Mamba2 net, Mamba2Step given) {
  await_previous();
  const Mamba2Step step = placed(given);
  const std::int64_t width = net.input_width();
  const std::int64_t c = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (c >= width) {
    const std::int64_t h = c - width;
    if (h >= net.heads) return;
    float* const decays = step.room + step.tokens * width;
    for (std::int64_t t = blockIdx.y; t < step.tokens; t += gridDim.y) {
      const std::int64_t at = t * net.heads + h;
      const float x = step.dt[at] + step.time_bias[h];
      const float dt = x > 20.0F ? x : log1pf(expf(x));
      decays[at] = expf(step.fading[h] * dt);
      decays[step.tokens * net.heads + at] = dt;
    }
    return;
  }
  const std::int64_t before = net.kernel - 1;
  const Inputs inputs{step.xbc, step.state, width, before};
  const float bias = step.bias == nullptr ? 0.0F : step.bias[c];
  for (std::int64_t t = blockIdx.y; t < step.tokens; t += gridDim.y) {
    float sum = bias;
    for (std::int64_t j = 0; j < net.kernel; ++j)
      sum += step.kernel[j * width + c] * inputs.of(t - before + j, c);
    step.room[t * width + c] = sum / (1.0F + expf(-sum));
  }
  if (blockIdx.y != 0) return;
  for (std::int64_t j = 0; j < before; ++j)
    step.next_state[j * width + c] = inputs.of(step.tokens - before + j, c);
}

/// A tile of tokens in shared memory. Elements of B and C beyond state_dim are 0.
template <int state_dim>
struct Tile {
  float b[tile][state_dim], c[tile][state_dim];
  float x[tile][columns];
  float decay[tile], dt[tile];
};

// grid: (heads, columns of a head / columns of a block). Threads 4 i and on have column i; of
// these, thread `part` has rows part, part + 4 and so on.
template <int state_dim>
__global__ void __launch_bounds__(scan_threads) scan_kernel(Mamba2 net, Mamba2Step given) {
  await_previous();
  const Mamba2Step step = placed(given);
  __shared__ Tile<state_dim> now;
  constexpr int rows = state_dim / parts;
  const std::int64_t width = net.input_width();
  const std::int64_t head = blockIdx.x;
  const std::int64_t first_column = std::int64_t{blockIdx.y} * columns;
  const int thread = static_cast<int>(threadIdx.x);
  const int part = thread % parts;
  const std::int64_t column = first_column + thread / parts;
  const bool there = column < net.head_dim;
  const int dim = static_cast<int>(net.state_dim);
  const std::int64_t group = head / (net.heads / net.groups) * net.state_dim;
  const std::int64_t b_at = net.width() + group;
  const std::int64_t c_at = b_at + net.groups * net.state_dim;
  const std::int64_t x_at = head * net.head_dim + first_column;
  const int some = static_cast<int>(min(std::int64_t{columns}, net.head_dim - first_column));
  const float* const decays = step.room + step.tokens * width + head;
  const float* const rates = decays + step.tokens * net.heads;
  const float skip = step.skip[head];

  const std::int64_t matrix = net.matrices_at() + head * net.state_dim * net.head_dim + column;
  float s[rows];
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const int row = i * parts + part;
    s[i] = there && step.state != nullptr && row < dim ? step.state[matrix + row * net.head_dim]
                                                       : 0.0F;
  }
  for (std::int64_t first = 0; first < step.tokens; first += tile) {
    const int count = static_cast<int>(min(std::int64_t{tile}, step.tokens - first));
    const float* const token = step.room + first * width;
    for (int i = thread; i < count * state_dim; i += scan_threads) {
      const int t = i / state_dim;
      const int row = i % state_dim;
      now.b[t][row] = row < dim ? token[t * width + b_at + row] : 0.0F;
      now.c[t][row] = row < dim ? token[t * width + c_at + row] : 0.0F;
    }
    for (int i = thread; i < count * some; i += scan_threads)
      now.x[i / some][i % some] = token[i / some * width + x_at + i % some];
    if (thread < count) {
      now.decay[thread] = decays[(first + thread) * net.heads];
      now.dt[thread] = rates[(first + thread) * net.heads];
    }
    __syncthreads();
    for (int t = 0; t < count; ++t) {
      const float x = there ? now.x[t][thread / parts] : 0.0F;
      const float change = now.dt[t] * x;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        const int row = i * parts + part;
        s[i] = now.decay[t] * s[i] + now.b[t][row] * change;
        sum += now.c[t][row] * s[i];
      }
      sum += __shfl_xor_sync(all_lanes, sum, 1);
      sum += __shfl_xor_sync(all_lanes, sum, 2);
      if (part == 0 && there)
        step.out[(first + t) * net.width() + head * net.head_dim + column] = sum + skip * x;
    }
    __syncthreads();  // the next tokens take the place of these
  }
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const int row = i * parts + part;
    if (there && row < dim) step.next_state[matrix + row * net.head_dim] = s[i];
  }
}

template <int state_dim>
void launch_scan(const Mamba2& net, const Mamba2Step& step, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(net.heads),
                  static_cast<unsigned>((net.head_dim - 1) / columns + 1));
  launch_overlapped(scan_kernel<state_dim>, grid, scan_threads, 0, stream, net, step);
  check_launch("the Mamba-2 kernel");
}

// A block a run of a row.
__global__ void norm_gated_kernel(const float* x, const float* gate, const float* weight,
                                  std::int64_t runs, std::int64_t run, std::int64_t groups,
                                  float epsilon, __nv_bfloat16* out) {
  await_previous();
  __shared__ float sums[block / warp];
  for (std::int64_t r = blockIdx.x; r < runs; r += gridDim.x) {
    const float* const of = weight + r % groups * run;
    const auto gated = [&](std::int64_t i) {
      const float g = gate[r * run + i];
      return x[r * run + i] * (g / (1.0F + expf(-g)));
    };
    float squares = 0;
    for (std::int64_t i = threadIdx.x; i < run; i += block) {
      const float value = gated(i);
      squares += value * value;
    }
    const float sum = block_sum<block>(squares, sums);
    const float by = 1.0F / sqrtf(sum / static_cast<float>(run) + epsilon);
    for (std::int64_t i = threadIdx.x; i < run; i += block)
      store(out + r * run + i, gated(i) * by * of[i]);
    __syncthreads();  // sums are written again
  }
}

}  // namespace

void mamba2(const Mamba2& net, const Mamba2Step& step, cudaStream_t stream) {
  if (step.tokens == 0) return;
  const dim3 mixing(static_cast<unsigned>((net.input_width() + net.heads - 1) / block + 1),
                    static_cast<unsigned>(min(step.tokens, std::int64_t{4096})));
  launch_overlapped(mix_kernel, mixing, block, 0, stream, net, step);
  check_launch("the convolution kernel of Mamba-2");
  if (net.state_dim <= 64) {
    launch_scan<64>(net, step, stream);
  } else if (net.state_dim <= 128) {
    launch_scan<128>(net, step, stream);
  } else {
    launch_scan<most_mamba_state_dim>(net, step, stream);
  }
}

void norm_gated(const float* x, const float* gate, const float* weight, std::int64_t rows,
                std::int64_t width, std::int64_t groups, float epsilon, __nv_bfloat16* out,
                cudaStream_t stream) {
  const std::int64_t runs = rows * groups;
  if (runs == 0 || width == 0) return;
  launch_overlapped(norm_gated_kernel, static_cast<unsigned>(min(runs, std::int64_t{65535})), block,
                    0, stream, x, gate, weight, runs, width / groups, groups, epsilon, out);
  check_launch("the gated norm kernel of Mamba-2");
}

}  // namespace topkv::gpu
