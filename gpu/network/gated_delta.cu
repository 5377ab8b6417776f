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

struct Gates {
  float decay, rate;
};

__device__ Gates gates_of(const GatedDeltaNet& net, const GatedDeltaStep& step, std::int64_t token,
                          std::int64_t head) {
  const float* const given = step.gates + 2 * token * net.value_heads + head;
  const float x = given[net.value_heads] + step.time_bias[head];
  const float soft = x > 20.0F ? x : log1pf(expf(x));
  return {expf(step.fading[head] * soft), 1.0F / (1.0F + expf(-given[0]))};
}

/// Of the convolution, whose channels go to warps head by head; of the gates; and the inputs that
/// the next step sees. grid: (tokens, heads / warps of a block).
__global__ void mix_kernel(GatedDeltaNet net, GatedDeltaStep step) {
  await_previous();
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
      const Gates of = gates_of(net, step, t, h);
      float* const gates = step.room + step.tokens * width;
      gates[at] = of.decay;
      gates[step.tokens * net.value_heads + at] = of.rate;
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

/// A column of a head's matrix, in the registers of the threads that share it. Thread `part` has
/// rows 16 i + 4 part to 16 i + 4 part + 3, so that the threads of a column read neighbours.
template <int key_dim>
class Column {
 public:
  /// part: from 0 to parts - 1. matrix: element (0, column) of the head's matrix in a state.
  __device__ Column(const GatedDeltaNet& net, std::int64_t matrix, int part)
      : net_(net), matrix_(matrix), part_(part) {}

  /// state: null: zeros.
  __device__ void load(const float* state) {
    each([&](int row, float& s) {
      s = state != nullptr && row < net_.key_dim ? state[matrix_ + row * net_.value_dim] : 0.0F;
    });
  }
  __device__ void store(float* state) {
    each([&](int row, float& s) {
      if (row < net_.key_dim) state[matrix_ + row * net_.value_dim] = s;
    });
  }

  /// Reads a token into the column, and returns what q gives of it, in each thread of the column.
  /// q, k: [key_dim] in shared memory, 0 beyond the network's own.
  __device__ float take(const float* q, const float* k, float v, const Gates& gates) {
    float seen[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < fours; ++i) {
      const float4 key = load4(k + row_of(i));
      seen[0] += key.x * s_[i][0];
      seen[1] += key.y * s_[i][1];
      seen[2] += key.z * s_[i][2];
      seen[3] += key.w * s_[i][3];
    }
    const float before = column_sum((seen[0] + seen[1]) + (seen[2] + seen[3]));
    const float change = gates.rate * (v - gates.decay * before);
    float given[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < fours; ++i) {
      const float4 key = load4(k + row_of(i));
      const float4 query = load4(q + row_of(i));
      s_[i][0] = gates.decay * s_[i][0] + key.x * change;
      s_[i][1] = gates.decay * s_[i][1] + key.y * change;
      s_[i][2] = gates.decay * s_[i][2] + key.z * change;
      s_[i][3] = gates.decay * s_[i][3] + key.w * change;
      given[0] += query.x * s_[i][0];
      given[1] += query.y * s_[i][1];
      given[2] += query.z * s_[i][2];
      given[3] += query.w * s_[i][3];
    }
    return column_sum((given[0] + given[1]) + (given[2] + given[3]));
  }

 private:
  static constexpr int fours = key_dim / (4 * parts);

  __device__ int row_of(int i) const { return 4 * parts * i + 4 * part_; }
  template <class Body>
  __device__ void each(Body body) {
#pragma unroll
    for (int i = 0; i < fours; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) body(row_of(i) + j, s_[i][j]);
    }
  }

  const GatedDeltaNet& net_;
  std::int64_t matrix_;
  int part_;
  float s_[fours][4];
};

// grid: (value heads, columns of a head / columns of a block). Threads 4 c and on have column c.
template <int key_dim>
__global__ void __launch_bounds__(delta_threads)
    delta_kernel(GatedDeltaNet net, GatedDeltaStep step) {
  await_previous();
  extern __shared__ float memory[];
  auto* const tiles = reinterpret_cast<Tile<key_dim>*>(memory);
  const std::int64_t head = blockIdx.x;
  const std::int64_t first_column = std::int64_t{blockIdx.y} * columns;
  const int c = static_cast<int>(threadIdx.x) / parts;
  const int part = static_cast<int>(threadIdx.x) % parts;
  const std::int64_t column = first_column + c;
  const bool there = column < net.value_dim;

  const int beyond = key_dim - static_cast<int>(net.key_dim);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * tile * beyond; i += delta_threads) {
    Tile<key_dim>& one = tiles[i / (tile * beyond)];
    const int t = i / beyond % tile;
    const int at = static_cast<int>(net.key_dim) + i % beyond;
    one.q[t][at] = one.k[t][at] = 0;
  }

  Column<key_dim> s(net, net.matrices_at() + head * net.key_dim * net.value_dim + column, part);
  s.load(there ? step.state : nullptr);
  copy_tile(net, step, head, first_column, 0, tiles[0]);
  __pipeline_commit();
  float* const out = step.out + head * net.value_dim + column;
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
      const float given =
          s.take(one.q[t], one.k[t], there ? one.v[t][c] : 0.0F, {one.decay[t], one.rate[t]});
      if (part == 0 && there) out[(first + t) * net.value_width()] = given;
    }
    __syncthreads();  // the next copies overwrite this tile
  }
  if (there) s.store(step.next_state);
}

// All of a step of one token, in one launch: a block convolves what its columns need. grid: as of
// delta_kernel.
template <int key_dim>
__global__ void __launch_bounds__(delta_threads)
    delta_token_kernel(GatedDeltaNet net, GatedDeltaStep step) {
  await_previous();
  if (step.states != nullptr) {  // of a recorded step, where they stand now
    step.state = step.states[0];
    step.next_state = const_cast<float*>(step.states[1]);
  }
  __shared__ float q[key_dim], k[key_dim];
  __shared__ float sums[delta_threads / warp];
  const std::int64_t head = blockIdx.x;
  const std::int64_t of_key = net.value_heads / net.key_heads;
  const std::int64_t column =
      std::int64_t{blockIdx.y} * columns + static_cast<int>(threadIdx.x) / parts;
  const int part = static_cast<int>(threadIdx.x) % parts;
  const bool there = column < net.value_dim;
  Column<key_dim> s(net, net.matrices_at() + head * net.key_dim * net.value_dim + column, part);
  s.load(there ? step.state : nullptr);

  const Inputs inputs{step.qkv, step.state, net.qkv_width(), net.kernel - 1};
  const auto keep = [&](std::int64_t channel) {
    for (std::int64_t j = 0; j < net.kernel - 1; ++j)
      step.next_state[j * inputs.width + channel] = inputs.of(2 - net.kernel + j, channel);
  };
  const auto mixed = [&](std::int64_t channel) {
    float sum = 0;
    for (std::int64_t j = 0; j < net.kernel; ++j)
      sum += step.kernel[j * inputs.width + channel] * inputs.of(1 - net.kernel + j, channel);
    return sum / (1.0F + expf(-sum));
  };
  const bool first = head % of_key == 0 && blockIdx.y == 0;  // of the blocks of this key head
  const auto unit = [&](std::int64_t channels, float scale, float* to) {
    float squares = 0;
    for (int i = static_cast<int>(threadIdx.x); i < key_dim; i += delta_threads) {
      const bool has = i < net.key_dim;
      to[i] = has ? mixed(channels + i) : 0.0F;
      squares += to[i] * to[i];
      if (has && first) keep(channels + i);
    }
    const float by = scale / sqrtf(block_sum<delta_threads>(squares, sums) + delta_norm_epsilon);
    for (int i = static_cast<int>(threadIdx.x); i < key_dim; i += delta_threads) to[i] *= by;
  };
  const std::int64_t key = head / of_key * net.key_dim;
  unit(key, rsqrtf(static_cast<float>(net.key_dim)), q);
  unit(net.key_width() + key, 1.0F, k);
  const std::int64_t channel = 2 * net.key_width() + head * net.value_dim + column;
  const float v = there ? mixed(channel) : 0.0F;
  if (there && part == 0) keep(channel);
  __syncthreads();
  const float given = s.take(q, k, v, gates_of(net, step, 0, head));
  if (!there) return;
  if (part == 0) step.out[head * net.value_dim + column] = given;
  s.store(step.next_state);
}

template <int key_dim>
void launch_delta(const GatedDeltaNet& net, const GatedDeltaStep& step, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(net.value_heads),
                  static_cast<unsigned>((net.value_dim - 1) / columns + 1));
  if (step.tokens == 1) {
    launch_overlapped(delta_token_kernel<key_dim>, grid, delta_threads, 0, stream, net, step);
    return check_launch("the Gated DeltaNet kernel of one token");
  }
  const std::int64_t heads = 2 * net.key_heads + net.value_heads;
  const dim3 mixing(static_cast<unsigned>(min(step.tokens, std::int64_t{4096})),
                    static_cast<unsigned>((heads - 1) / (block / warp) + 1));
  launch_overlapped(mix_kernel, mixing, block, 0, stream, net, step);
  check_launch("the convolution kernel");
  constexpr int bytes = 2 * static_cast<int>(sizeof(Tile<key_dim>));
  if (bytes > 48 * 1024) {
    TOPKV_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(delta_kernel<key_dim>),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  }
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
