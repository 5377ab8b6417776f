// Gated DeltaNet: a token after the other, in one kernel for all tokens of a step. Columns of a
// head's matrix go their own ways, so a block has some of them, in registers, for the whole step.
#include <cuda_pipeline.h>

#include <type_traits>

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

__device__ Gates gates_of(float rate, float time, const GatedDeltaStep& step, std::int64_t head) {
  const float x = time + step.time_bias[head];
  const float soft = x > 20.0F ? x : log1pf(expf(x));
  return {expf(step.fading[head] * soft), 1.0F / (1.0F + expf(-rate))};
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
      const float* const given = step.gates + 2 * t * net.value_heads + h;
      const Gates of = gates_of(given[0], given[net.value_heads], step, h);
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
  const std::int64_t q = net.key_head_of(head) * net.key_dim;
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

constexpr int token_columns = 128;  // of a head at a time, for one token
constexpr int token_warps = 16;
constexpr int token_threads = token_warps * warp;
constexpr int weights_ahead =
    2;  // eights of a row of gate weights that a thread has from the start

/// A token of a layer, or a step of one token: gates are given then, and `out` is null.
struct Token {
  GatedDeltaStep step;
  const __nv_bfloat16* gate_weights;  // null: the step has gates
  const __nv_bfloat16* x;
  std::int64_t inputs;  // of gate_weights
  const float* z;
  const float* norm;
  float epsilon;
  __nv_bfloat16* out;  // null: the step's is written
};

/// A channel of the convolution on its way: what earlier tokens give of it, and this token's
/// weight.
struct Channel {
  std::int64_t at = -1;  // -1: none
  float sum = 0, weight = 0;

  __device__ static Channel before(const GatedDeltaNet& net, const GatedDeltaStep& step,
                                   std::int64_t at) {
    const std::int64_t width = net.qkv_width();
    Channel channel{at, 0, step.kernel[(net.kernel - 1) * width + at]};
    for (std::int64_t j = 0; j < net.kernel - 1; ++j) {
      const float input = step.state == nullptr ? 0.0F : step.state[j * width + at];
      channel.sum += step.kernel[j * width + at] * input;
    }
    return channel;
  }
  __device__ float with(float input) const {
    const float all = sum + weight * input;
    return all / (1.0F + expf(-all));
  }
};

__device__ __forceinline__ float dot8(uint4 a, uint4 b) {
  const unsigned left[4] = {a.x, a.y, a.z, a.w};
  const unsigned right[4] = {b.x, b.y, b.z, b.w};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum += low(left[i]) * low(right[i]) + high(left[i]) * high(right[i]);
  return sum;
}

/// Two rows of gate weights of a head, as far as a thread has them.
struct GateRows {
  const __nv_bfloat16* rate;
  const __nv_bfloat16* time;
  std::int64_t inputs;
  uint4 ahead[2][weights_ahead];

  __device__ GateRows(const GatedDeltaNet& net, const Token& token, std::int64_t head)
      : rate(token.gate_weights + head * token.inputs),
        time(token.gate_weights + (net.value_heads + head) * token.inputs),
        inputs(token.inputs) {
#pragma unroll
    for (int i = 0; i < weights_ahead; ++i) {
      const std::int64_t first = input(i);
      if (first >= inputs) break;
      ahead[0][i] = *reinterpret_cast<const uint4*>(rate + first);
      ahead[1][i] = *reinterpret_cast<const uint4*>(time + first);
    }
  }
  __device__ static std::int64_t input(std::int64_t i) {
    return (i * token_threads + static_cast<int>(threadIdx.x)) * 8;
  }
  /// Adds the thread's part of the products with x.
  __device__ void multiply(const __nv_bfloat16* x, float& of_rate, float& of_time) const {
#pragma unroll
    for (int i = 0; i < weights_ahead; ++i) {
      const std::int64_t first = input(i);
      if (first >= inputs) return;
      const uint4 eight = *reinterpret_cast<const uint4*>(x + first);
      of_rate += dot8(ahead[0][i], eight);
      of_time += dot8(ahead[1][i], eight);
    }
    for (std::int64_t i = weights_ahead; input(i) < inputs; ++i) {
      const std::int64_t first = input(i);
      const uint4 eight = *reinterpret_cast<const uint4*>(x + first);
      of_rate += dot8(*reinterpret_cast<const uint4*>(rate + first), eight);
      of_time += dot8(*reinterpret_cast<const uint4*>(time + first), eight);
    }
  }
};

/// The sums over a block of some values of each thread, in every thread. shared: is not written
/// again before all threads have read it.
template <int count>
__device__ __forceinline__ void token_sums(float (&values)[count],
                                           float (&shared)[count][token_warps]) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const int number = static_cast<int>(threadIdx.x) / warp;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const float sum = warp_sum(values[i]);
    if (lane == 0) shared[i][number] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < count; ++i) {
    values[i] = 0;
    for (const float sum : shared[i]) values[i] += sum;
  }
}

/// Rows of a head's matrix, each thread with four columns of some: warp w has rows w, w + 16 and so
/// on, so that its lanes read neighbours.
template <int key_dim>
class HeadRows {
 public:
  using Parts = float[token_warps][token_columns];  // of sums over rows, a warp's each

  __device__ HeadRows(const GatedDeltaNet& net, std::int64_t head)
      : net_(net),
        matrix_(net.matrices_at() + head * net.key_dim * net.value_dim),
        fours_(net.value_dim % 4 == 0 && net.matrices_at() % 4 == 0) {}

  /// Columns [first, first + 128). state: null: zeros.
  __device__ void load(const float* state, std::int64_t first) {
    each(first, [&](std::int64_t at, int there, float(&s)[4]) {
      if (there == 4 && fours_ && state != nullptr) {
        const float4 four = load4(state + at);
        s[0] = four.x;
        s[1] = four.y;
        s[2] = four.z;
        s[3] = four.w;
        return;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) s[j] = state != nullptr && j < there ? state[at + j] : 0.0F;
    });
  }
  __device__ void store(float* state, std::int64_t first) {
    each(first, [&](std::int64_t at, int there, float(&s)[4]) {
      if (there == 4 && fours_) return store4(state + at, {s[0], s[1], s[2], s[3]});
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (j < there) state[at + j] = s[j];
      }
    });
  }

  /// Reads the token into the rows. v: [128] in shared memory. Leaves what q gives of them in
  /// `given`, as parts, for the threads of the block, which have met.
  __device__ void take(const float* q, const float* k, const float* v, const Gates& gates,
                       Parts& seen, Parts& given) {
    const int lane = static_cast<int>(threadIdx.x) % warp;
    const int number = static_cast<int>(threadIdx.x) / warp;
    float sum[4] = {};
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      const float key = k[i * token_warps + number];
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[j] += key * s_[i][j];
    }
    store4(seen[number] + 4 * lane, {sum[0], sum[1], sum[2], sum[3]});
    __syncthreads();
    float change[4] = {};
    for (int w = 0; w < token_warps; ++w) {
      const float4 part = load4(seen[w] + 4 * lane);
      change[0] += part.x;
      change[1] += part.y;
      change[2] += part.z;
      change[3] += part.w;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      change[j] = gates.rate * (v[4 * lane + j] - gates.decay * change[j]);
      sum[j] = 0;
    }
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      const float key = k[i * token_warps + number];
      const float query = q[i * token_warps + number];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s_[i][j] = gates.decay * s_[i][j] + key * change[j];
        sum[j] += query * s_[i][j];
      }
    }
    store4(given[number] + 4 * lane, {sum[0], sum[1], sum[2], sum[3]});
    __syncthreads();
  }

 private:
  static constexpr int rows = key_dim / token_warps;

  /// body(element of a state, how many of the four columns are there, the four).
  template <class Body>
  __device__ void each(std::int64_t first, Body body) {
    const std::int64_t column = first + 4 * (static_cast<int>(threadIdx.x) % warp);
    const auto there =
        static_cast<int>(max(std::int64_t{0}, min(std::int64_t{4}, net_.value_dim - column)));
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      const int row = i * token_warps + static_cast<int>(threadIdx.x) / warp;
      body(matrix_ + row * net_.value_dim + column, row < net_.key_dim ? there : 0, s_[i]);
    }
  }

  const GatedDeltaNet& net_;
  std::int64_t matrix_;
  bool fours_;
  float s_[rows][4];
};

// All of a step of one token, in one launch: a block has a value head. Of a recorded token, weights
// and the state before it are read while the kernel in front runs: no kernel of the recording
// writes them. Dynamic shared memory: value_dim floats.
template <int key_dim>
__global__ void __launch_bounds__(token_threads, 1)
    delta_token_kernel(const __grid_constant__ GatedDeltaNet net,
                       const __grid_constant__ Token token) {
  extern __shared__ float outs[];
  __shared__ float q[key_dim], k[key_dim], v[token_columns];
  __shared__ __align__(16) typename HeadRows<key_dim>::Parts seen, given;
  __shared__ float sums[4][token_warps];
  __shared__ float squares[1][token_warps];
  constexpr int all_channels = 2 * key_dim + token_columns;
  constexpr int channels_of_thread = (all_channels - 1) / token_threads + 1;

  GatedDeltaStep step = token.step;
  const bool recorded = step.states != nullptr;
  if (recorded) {
    step.state = step.states[0];
    step.next_state = const_cast<float*>(step.states[1]);
  } else {
    await_previous();
  }
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t head = blockIdx.x;
  const std::int64_t key = net.key_head_of(head) * net.key_dim;
  const std::int64_t values = 2 * net.key_width() + head * net.value_dim;

  HeadRows<key_dim> s(net, head);
  s.load(step.state, 0);
  Channel channels[channels_of_thread];
#pragma unroll
  for (int n = 0; n < channels_of_thread; ++n) {
    const int i = n * token_threads + thread;
    const int of = i < 2 * key_dim ? i % key_dim : i - 2 * key_dim;
    if (i >= all_channels || of >= (i < 2 * key_dim ? net.key_dim : net.value_dim)) continue;
    const std::int64_t first = i < key_dim ? key : i < 2 * key_dim ? net.key_width() + key : values;
    channels[n] = Channel::before(net, step, first + of);
  }
  const bool own_gates = token.gate_weights != nullptr;
  const GateRows rows(net, token, head);
  const bool normed = token.out != nullptr && thread < net.value_dim;
  const float norm = normed ? token.norm[thread] : 0.0F;
  if (recorded) await_previous();

  const float z = normed ? token.z[head * net.value_dim + thread] : 0.0F;
  // Of all threads: squares of q, of k, and the gates.
  float parts_of[4] = {};
#pragma unroll
  for (int n = 0; n < channels_of_thread; ++n) {
    const int i = n * token_threads + thread;
    if (i >= all_channels) break;
    const Channel& channel = channels[n];
    const float mixed = channel.at < 0 ? 0.0F : channel.with(step.qkv[channel.at]);
    if (i < key_dim) {
      q[i] = mixed;
      parts_of[0] += mixed * mixed;
    } else if (i < 2 * key_dim) {
      k[i - key_dim] = mixed;
      parts_of[1] += mixed * mixed;
    } else {
      v[i - 2 * key_dim] = mixed;
    }
  }
  if (own_gates) rows.multiply(token.x, parts_of[2], parts_of[3]);
  token_sums(parts_of, sums);
  const float of_q =
      rsqrtf(static_cast<float>(net.key_dim)) / sqrtf(parts_of[0] + delta_norm_epsilon);
  const float of_k = 1.0F / sqrtf(parts_of[1] + delta_norm_epsilon);
  for (int i = thread; i < 2 * key_dim; i += token_threads) {
    if (i < key_dim) {
      q[i] *= of_q;
    } else {
      k[i - key_dim] *= of_k;
    }
  }
  const Gates gates =
      own_gates ? gates_of(parts_of[2], parts_of[3], step, head)
                : gates_of(step.gates[head], step.gates[net.value_heads + head], step, head);
  __syncthreads();

  float size[1] = {};
  for (std::int64_t first = 0; first < net.value_dim; first += token_columns) {
    const std::int64_t column = first + thread;
    const bool has = thread < token_columns && column < net.value_dim;
    if (first > 0) {
      s.load(step.state, first);
      if (has) {
        const Channel channel = Channel::before(net, step, values + column);
        v[thread] = channel.with(step.qkv[channel.at]);
      }
      __syncthreads();
    }
    s.take(q, k, v, gates, seen, given);
    s.store(step.next_state, first);
    if (!has) continue;
    float out = 0;
    for (const auto& part : given) out += part[thread];
    size[0] += out * out;
    if (token.out != nullptr) {
      outs[column] = out;
    } else {
      step.out[head * net.value_dim + column] = out;
    }
  }

  // The inputs that the next token sees: of q and k, by the first head that has them.
  const auto keep = [&](std::int64_t first, std::int64_t count) {
    const std::int64_t width = net.qkv_width();
    for (std::int64_t i = thread; i < count; i += token_threads) {
      const std::int64_t at = first + i;
      for (std::int64_t j = 1; j < net.kernel - 1; ++j)
        step.next_state[(j - 1) * width + at] =
            step.state == nullptr ? 0.0F : step.state[j * width + at];
      step.next_state[(net.kernel - 2) * width + at] = step.qkv[at];
    }
  };
  if (net.is_first_of_key_head(head)) {
    keep(key, net.key_dim);
    keep(net.key_width() + key, net.key_dim);
  }
  keep(values, net.value_dim);

  if (token.out == nullptr) return;
  token_sums(size, squares);
  const float by = 1.0F / sqrtf(size[0] / static_cast<float>(net.value_dim) + token.epsilon);
  for (std::int64_t i = thread; i < net.value_dim; i += token_threads) {
    const std::int64_t at = head * net.value_dim + i;
    const float g = i == thread ? z : token.z[at];
    const float weight = i == thread ? norm : token.norm[i];
    store(token.out + at, outs[i] * by * weight * (g / (1.0F + expf(-g))));
  }
}

template <int key_dim>
void launch_token(const GatedDeltaNet& net, const Token& token, cudaStream_t stream) {
  launch_overlapped(delta_token_kernel<key_dim>, static_cast<unsigned>(net.value_heads),
                    token_threads, static_cast<std::size_t>(net.value_dim) * sizeof(float), stream,
                    net, token);
  check_launch("the Gated DeltaNet kernel of one token");
}

template <int key_dim>
void launch_delta(const GatedDeltaNet& net, const GatedDeltaStep& step, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(net.value_heads),
                  static_cast<unsigned>((net.value_dim - 1) / columns + 1));
  if (step.tokens == 1) {
    Token token{};
    token.step = step;
    return launch_token<key_dim>(net, token, stream);
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

namespace {

/// Calls launch with the room that kernels have for a key, as a constant.
template <class Launch>
void with_key_room(const GatedDeltaNet& net, Launch launch) {
  if (net.key_dim <= 64) {
    launch(std::integral_constant<int, 64>());
  } else if (net.key_dim <= 128) {
    launch(std::integral_constant<int, 128>());
  } else {
    launch(std::integral_constant<int, int{most_delta_key_dim}>());
  }
}

}  // namespace

void gated_delta(const GatedDeltaNet& net, const GatedDeltaStep& step, cudaStream_t stream) {
  if (step.tokens == 0) return;
  with_key_room(net, [&](auto room) { launch_delta<room.value>(net, step, stream); });
}

bool gated_delta_token(const GatedDeltaNet& net, const GatedDeltaToken& given,
                       cudaStream_t stream) {
  Token token{};
  token.step = given.step;
  token.z = given.z;
  token.norm = given.norm;
  token.epsilon = given.epsilon;
  token.out = reinterpret_cast<__nv_bfloat16*>(given.out);
  const Matrix& weights = *given.gate_weights;
  if (weights.packed() || weights.in_features % 8 != 0 || !aligned({weights.data, given.x}, 16))
    return false;
  token.gate_weights = reinterpret_cast<const __nv_bfloat16*>(weights.data);
  token.x = reinterpret_cast<const __nv_bfloat16*>(given.x);
  token.inputs = weights.in_features;
  with_key_room(net, [&](auto room) { launch_token<room.value>(net, token, stream); });
  return true;
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
