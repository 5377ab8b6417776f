// Gated DeltaNet: a token after the other, in one kernel for all tokens of a step. Columns of a
// head's matrix go their own ways, so a block has some of them, in registers, for the whole step.
#include <cuda_pipeline.h>

#include "gpu/network/gated_delta.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

constexpr int parts = 4;     // threads of a column, each with a quarter of its rows
constexpr int columns = 32;  // of a block
constexpr int delta_threads = parts * columns;
constexpr int tile = 16;  // tokens that are in shared memory at a time

/// What the tokens of a step, and those before it, gave to the convolution.
struct Inputs {
  const float* qkv;
  const float* state;  // null: zeros
  std::int64_t width, before;

  __device__ float of(std::int64_t token, std::int64_t channel) const {
    if (token >= 0) return qkv[token * width + channel];
    return state == nullptr ? 0.0F : state[(before + token) * width + channel];
  }
};

/// Takes the pointers of a recorded step from where they stand now.
__device__ void find_states(GatedDeltaStep& step) {
  if (step.states == nullptr) return;
  step.state = step.states[0];
  step.next_state = const_cast<float*>(step.states[1]);
}

/// Of the convolution, whose channels go to warps head by head; of the gates; and the inputs that
/// the next step sees. grid: (tokens, heads / warps of a block).
__global__ void mix_kernel(GatedDeltaNet net, GatedDeltaStep step) {
  await_previous();
  find_states(step);
  const std::int64_t width = net.qkv_width();
  const std::int64_t key_heads = 2 * net.key_heads;
  const std::int64_t heads = key_heads + net.value_heads;
  const std::int64_t head =
      std::int64_t{blockIdx.y} * (block / warp) + static_cast<int>(threadIdx.x) / warp;
  if (head >= heads) return;
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const bool key = head < key_heads;
  const std::int64_t dim = key ? net.key_dim : net.value_dim;
  const std::int64_t first = key ? head * dim : key_heads * net.key_dim + (head - key_heads) * dim;
  const Inputs inputs{step.qkv, step.state, width, net.kernel - 1};
  const float query_scale = head < net.key_heads ? rsqrtf(static_cast<float>(dim)) : 1.0F;
  for (std::int64_t t = blockIdx.x; t < step.tokens; t += gridDim.x) {
    float* const to = step.room + t * width;
    float squares = 0;
    for (std::int64_t c = first + lane; c < first + dim; c += warp) {
      float sum = 0;
      for (std::int64_t j = 0; j < net.kernel; ++j)
        sum += step.kernel[j * width + c] * inputs.of(t - net.kernel + 1 + j, c);
      const float mixed = sum / (1.0F + expf(-sum));
      squares += mixed * mixed;
      to[c] = mixed;
    }
    if (key) {
      const float by = query_scale / sqrtf(warp_sum(squares) + delta_norm_epsilon);
      for (std::int64_t c = first + lane; c < first + dim; c += warp) to[c] *= by;
    } else if (lane == 0) {
      const std::int64_t h = head - key_heads;
      const std::int64_t at = t * net.value_heads + h;
      const float x = step.time[at] + step.time_bias[h];
      const float soft = x > 20.0F ? x : log1pf(expf(x));
      float* const gates = step.room + step.tokens * width;
      gates[at] = expf(step.fading[h] * soft);
      gates[step.tokens * net.value_heads + at] = 1.0F / (1.0F + expf(-step.gate[at]));
    }
  }
  if (blockIdx.x != 0) return;
  for (std::int64_t j = 0; j < net.kernel - 1; ++j) {
    for (std::int64_t c = first + lane; c < first + dim; c += warp)
      step.next_state[j * width + c] = inputs.of(step.tokens - net.kernel + 1 + j, c);
  }
}

/// A tile of tokens in shared memory. Elements of q and k beyond key_dim are 0.
template <int key_dim>
struct Tile {
  float q[tile][key_dim], k[tile][key_dim];
  float v[tile][columns];
  float decay[tile], rate[tile];
};

/// Starts to copy tokens [first, first + tile) of a head, as far as there are some.
template <int key_dim>
__device__ void copy_tile(const GatedDeltaNet& net, const GatedDeltaStep& step, std::int64_t head,
                          std::int64_t column, std::int64_t first, Tile<key_dim>& to) {
  const std::int64_t width = net.qkv_width();
  const int count = static_cast<int>(min(std::int64_t{tile}, step.tokens - first));
  const float* const token = step.room + first * width;
  const std::int64_t q = head / (net.value_heads / net.key_heads) * net.key_dim;
  const std::int64_t k = net.key_width() + q;
  const std::int64_t v = 2 * net.key_width() + head * net.value_dim + column;
  const int dim = static_cast<int>(net.key_dim);
  if (dim % 4 == 0 && width % 4 == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < count * (dim / 4); i += delta_threads) {
      const int t = i / (dim / 4);
      const int at = i % (dim / 4) * 4;
      __pipeline_memcpy_async(&to.q[t][at], token + t * width + q + at, sizeof(float4));
      __pipeline_memcpy_async(&to.k[t][at], token + t * width + k + at, sizeof(float4));
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < count * dim; i += delta_threads) {
      const int t = i / dim;
      const int at = i % dim;
      __pipeline_memcpy_async(&to.q[t][at], token + t * width + q + at, sizeof(float));
      __pipeline_memcpy_async(&to.k[t][at], token + t * width + k + at, sizeof(float));
    }
  }
  const int some = static_cast<int>(min(std::int64_t{columns}, net.value_dim - column));
  for (int i = static_cast<int>(threadIdx.x); i < count * some; i += delta_threads)
    __pipeline_memcpy_async(&to.v[i / some][i % some], token + i / some * width + v + i % some, 4);
  const float* const gates = step.room + step.tokens * width + first * net.value_heads + head;
  for (int t = static_cast<int>(threadIdx.x); t < count; t += delta_threads) {
    __pipeline_memcpy_async(&to.decay[t], gates + t * net.value_heads, 4);
    __pipeline_memcpy_async(&to.rate[t], gates + (step.tokens + t) * net.value_heads, 4);
  }
}

/// The sum over the threads of a column.
__device__ inline float column_sum(float x) {
  x += __shfl_xor_sync(all_lanes, x, 1);
  return x + __shfl_xor_sync(all_lanes, x, 2);
}

// grid: (value heads, columns of a head / columns of a block). Thread 4 c + p has rows 16 i + 4 p
// to 16 i + 4 p + 3 of column c, so that the four threads of a column read neighbours.
template <int key_dim>
__global__ void __launch_bounds__(delta_threads)
    delta_kernel(GatedDeltaNet net, GatedDeltaStep step) {
  await_previous();
  find_states(step);
  extern __shared__ float memory[];
  auto* const tiles = reinterpret_cast<Tile<key_dim>*>(memory);
  constexpr int fours = key_dim / (4 * parts);
  const std::int64_t head = blockIdx.x;
  const std::int64_t first_column = std::int64_t{blockIdx.y} * columns;
  const int c = static_cast<int>(threadIdx.x) / parts;
  const int part = static_cast<int>(threadIdx.x) % parts;
  const std::int64_t column = first_column + c;
  const bool there = column < net.value_dim;
  const auto row_of = [&](int i, int j) { return 4 * parts * i + 4 * part + j; };

  for (int i = static_cast<int>(threadIdx.x);
       i < 2 * tile * (key_dim - static_cast<int>(net.key_dim)); i += delta_threads) {
    const int beyond = key_dim - static_cast<int>(net.key_dim);
    Tile<key_dim>& one = tiles[i / (tile * beyond)];
    const int t = i / beyond % tile;
    const int at = static_cast<int>(net.key_dim) + i % beyond;
    one.q[t][at] = one.k[t][at] = 0;
  }

  const std::int64_t matrix = net.matrices_at() + head * net.key_dim * net.value_dim + column;
  float s[fours][4];
#pragma unroll
  for (int i = 0; i < fours; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = row_of(i, j);
      const bool has = there && step.state != nullptr && row < net.key_dim;
      s[i][j] = has ? step.state[matrix + row * net.value_dim] : 0.0F;
    }
  }

  copy_tile(net, step, head, first_column, 0, tiles[0]);
  __pipeline_commit();
  float* out = step.out + head * net.value_dim + column;
  for (std::int64_t first = 0; first < step.tokens; first += tile) {
    const int now = static_cast<int>(first / tile % 2);
    if (first + tile < step.tokens)
      copy_tile(net, step, head, first_column, first + tile, tiles[1 - now]);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    const Tile<key_dim>& one = tiles[now];
    const int count = static_cast<int>(min(std::int64_t{tile}, step.tokens - first));
    for (int t = 0; t < count; ++t) {
      const float decay = one.decay[t];
      float seen[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < fours; ++i) {
        const float4 k = load4(&one.k[t][row_of(i, 0)]);
        seen[0] += k.x * s[i][0];
        seen[1] += k.y * s[i][1];
        seen[2] += k.z * s[i][2];
        seen[3] += k.w * s[i][3];
      }
      const float before = column_sum((seen[0] + seen[1]) + (seen[2] + seen[3]));
      const float change = one.rate[t] * ((there ? one.v[t][c] : 0.0F) - decay * before);
      float given[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < fours; ++i) {
        const float4 k = load4(&one.k[t][row_of(i, 0)]);
        const float4 q = load4(&one.q[t][row_of(i, 0)]);
        s[i][0] = decay * s[i][0] + k.x * change;
        s[i][1] = decay * s[i][1] + k.y * change;
        s[i][2] = decay * s[i][2] + k.z * change;
        s[i][3] = decay * s[i][3] + k.w * change;
        given[0] += q.x * s[i][0];
        given[1] += q.y * s[i][1];
        given[2] += q.z * s[i][2];
        given[3] += q.w * s[i][3];
      }
      const float sum = column_sum((given[0] + given[1]) + (given[2] + given[3]));
      if (part == 0 && there) out[(first + t) * net.value_width()] = sum;
    }
    __syncthreads();  // the next copies overwrite this tile
  }

  if (!there) return;
#pragma unroll
  for (int i = 0; i < fours; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = row_of(i, j);
      if (row < net.key_dim) step.next_state[matrix + row * net.value_dim] = s[i][j];
    }
  }
}

template <int key_dim>
void launch_delta(const GatedDeltaNet& net, const GatedDeltaStep& step, cudaStream_t stream) {
  constexpr int bytes = 2 * static_cast<int>(sizeof(Tile<key_dim>));
  if (bytes > 48 * 1024) {
    TOPKV_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(delta_kernel<key_dim>),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  }
  const dim3 grid(static_cast<unsigned>(net.value_heads),
                  static_cast<unsigned>((net.value_dim - 1) / columns + 1));
  launch_overlapped(delta_kernel<key_dim>, grid, delta_threads, bytes, stream, net, step);
  check_launch("the Gated DeltaNet kernel");
}

/// A warp a row.
__global__ void gated_norm_kernel(const float* x, const float* gate, const float* weight,
                                  std::int64_t rows, std::int64_t width, float epsilon,
                                  __nv_bfloat16* out) {
  await_previous();
  const int lane = static_cast<int>(threadIdx.x) % warp;
  std::int64_t row =
      std::int64_t{blockIdx.x} * (block / warp) + static_cast<int>(threadIdx.x) / warp;
  for (; row < rows; row += std::int64_t{gridDim.x} * (block / warp)) {
    const std::int64_t first = row * width;
    float squares = 0;
    for (std::int64_t i = lane; i < width; i += warp) squares += x[first + i] * x[first + i];
    const float by = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(width) + epsilon);
    for (std::int64_t i = lane; i < width; i += warp) {
      const float g = gate[first + i];
      store(out + first + i, x[first + i] * by * weight[i] * (g / (1.0F + expf(-g))));
    }
  }
}

__global__ void part_pairs_kernel(const float* from, std::int64_t count, std::int64_t width,
                                  float* first, float* second) {
  await_previous();
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const std::int64_t at = i + i / width * width;
    first[i] = from[at];
    second[i] = from[at + width];
  }
}

__global__ void sigmoid_multiply_kernel(const float* gate, const float* x, std::int64_t count,
                                        __nv_bfloat16* out) {
  await_previous();
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    store(out + i, x[i] / (1.0F + expf(-gate[i])));
}

__global__ void scale_rows_kernel(const float* weights, std::int64_t count, std::int64_t width,
                                  float* x) {
  await_previous();
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    x[i] /= 1.0F + expf(-weights[i / width]);
}

}  // namespace

void gated_delta(const GatedDeltaNet& net, const GatedDeltaStep& step, cudaStream_t stream) {
  if (step.tokens == 0) return;
  const std::int64_t heads = 2 * net.key_heads + net.value_heads;
  const dim3 grid(static_cast<unsigned>(min(step.tokens, std::int64_t{4096})),
                  static_cast<unsigned>((heads - 1) / (block / warp) + 1));
  launch_overlapped(mix_kernel, grid, block, 0, stream, net, step);
  check_launch("the convolution kernel");
  if (net.key_dim <= 64) {
    launch_delta<64>(net, step, stream);
  } else if (net.key_dim <= 128) {
    launch_delta<128>(net, step, stream);
  } else {
    launch_delta<most_delta_key_dim>(net, step, stream);
  }
}

void gated_norm(const float* x, const float* gate, const float* weight, std::int64_t rows,
                std::int64_t width, float epsilon, __nv_bfloat16* out, cudaStream_t stream) {
  if (rows == 0 || width == 0) return;
  launch_overlapped(gated_norm_kernel, blocks_for(rows, block / warp), block, 0, stream, x, gate,
                    weight, rows, width, epsilon, out);
  check_launch("the gated norm kernel");
}

void part_pairs(const float* from, std::int64_t rows, std::int64_t width, float* first,
                float* second, cudaStream_t stream) {
  const std::int64_t count = rows * width;
  if (count == 0) return;
  launch_overlapped(part_pairs_kernel, blocks_for(count, block), block, 0, stream, from, count,
                    width, first, second);
  check_launch("the kernel that parts pairs");
}

void sigmoid_multiply(const float* gate, const float* x, std::int64_t count, __nv_bfloat16* out,
                      cudaStream_t stream) {
  if (count == 0) return;
  launch_overlapped(sigmoid_multiply_kernel, blocks_for(count, block), block, 0, stream, gate, x,
                    count, out);
  check_launch("the sigmoid kernel");
}

void scale_rows(const float* weights, std::int64_t rows, std::int64_t width, float* x,
                cudaStream_t stream) {
  const std::int64_t count = rows * width;
  if (count == 0) return;
  launch_overlapped(scale_rows_kernel, blocks_for(count, block), block, 0, stream, weights, count,
                    width, x);
  check_launch("the kernel that scales rows");
}

}  // namespace topkv::gpu
