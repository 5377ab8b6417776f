// What a forward pass does to activations between products and attention. These kernels are short:
// each begins while the one in front ends.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "gpu/network/elementwise.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

/// Sum over the threads that share a row: a warp, or the whole block.
template <int row_threads>
__device__ float row_sum(float x) {
  x = warp_sum(x);
  if constexpr (row_threads > warp) {
    __shared__ float sums[row_threads / warp];
    if (threadIdx.x % warp == 0) sums[threadIdx.x / warp] = x;
    __syncthreads();
    x = 0;
    for (float sum : sums) x += sum;
    __syncthreads();  // the next row's sums overwrite these
  }
  return x;
}

__global__ void embed_kernel(const __nv_bfloat16* table, const std::int32_t* tokens,
                             std::int64_t count, std::int64_t width, std::int64_t vectors,
                             float* out) {
  for (std::int64_t t = blockIdx.x; t < count; t += gridDim.x) {
    const __nv_bfloat16* from = table + std::int64_t{tokens[t]} * width;
    float* to = out + t * width;
    for (std::int64_t v = threadIdx.x; v < vectors; v += blockDim.x) {
      const uint4 eight = *reinterpret_cast<const uint4*>(from + 8 * v);
      const auto low = [](unsigned pair) { return __uint_as_float(pair << 16); };
      const auto high = [](unsigned pair) { return __uint_as_float(pair & 0xffff0000U); };
      store4(to + 8 * v, {low(eight.x), high(eight.x), low(eight.y), high(eight.y)});
      store4(to + 8 * v + 4, {low(eight.z), high(eight.z), low(eight.w), high(eight.w)});
    }
    for (std::int64_t i = 8 * vectors + threadIdx.x; i < width; i += blockDim.x)
      to[i] = __bfloat162float(from[i]);
  }
}

__global__ void bias_kernel(const float* bias, std::int64_t rows, std::int64_t width,
                            std::int64_t vectors, float* x) {
  await_previous();
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float* to = x + row * width;
    for (std::int64_t v = threadIdx.x; v < vectors; v += blockDim.x) {
      const float4 a = load4(to + 4 * v);
      const float4 b = load4(bias + 4 * v);
      store4(to + 4 * v, {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w});
    }
    for (std::int64_t i = 4 * vectors + threadIdx.x; i < width; i += blockDim.x) to[i] += bias[i];
  }
}

/// What a norm writes to: what is there is replaced, or added to.
template <class Out>
struct Replaced {
  Out* to;
  __device__ void one(std::int64_t i, float y) const { store(to + i, y); }
  __device__ void four(std::int64_t i, float4 y) const { store4(to + i, y); }
};
struct AddedTo {
  float* to;
  __device__ void one(std::int64_t i, float y) const { to[i] += y; }
  __device__ void four(std::int64_t i, float4 y) const {
    const float4 a = load4(to + i);
    store4(to + i, {a.x + y.x, a.y + y.y, a.z + y.z, a.w + y.w});
  }
};

// The second reading of a row finds it in the first-level cache. x and out may be the same: each
// thread writes only what it alone reads after the sum.
template <int row_threads, class Sink>
__global__ void norm_kernel(const float* x, const float* weight, std::int64_t rows,
                            std::int64_t width, std::int64_t vectors, float epsilon, Sink out) {
  await_previous();
  constexpr int rows_at_once = block / row_threads;
  const std::int64_t lane = threadIdx.x % row_threads;
  std::int64_t row = std::int64_t{blockIdx.x} * rows_at_once + threadIdx.x / row_threads;
  for (; row < rows; row += std::int64_t{gridDim.x} * rows_at_once) {
    const float* from = x + row * width;
    float sum = 0;
    for (std::int64_t v = lane; v < vectors; v += row_threads) {
      const float4 a = load4(from + 4 * v);
      sum += a.x * a.x + a.y * a.y + (a.z * a.z + a.w * a.w);
    }
    for (std::int64_t i = 4 * vectors + lane; i < width; i += row_threads) sum += from[i] * from[i];
    const float mean = row_sum<row_threads>(sum) / static_cast<float>(width);
    const float scale = 1.0F / sqrtf(mean + epsilon);
    for (std::int64_t v = lane; v < vectors; v += row_threads) {
      const float4 a = load4(from + 4 * v);
      const float4 w = load4(weight + 4 * v);
      out.four(row * width + 4 * v,
               {a.x * scale * w.x, a.y * scale * w.y, a.z * scale * w.z, a.w * scale * w.w});
    }
    for (std::int64_t i = 4 * vectors + lane; i < width; i += row_threads)
      out.one(row * width + i, from[i] * scale * weight[i]);
  }
}

template <class Sink>
void launch_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t width,
                 float epsilon, Sink out, cudaStream_t stream) {
  if (rows == 0 || width == 0) return;
  const std::int64_t vectors = row_vectors(
      width, 4, aligned({x, weight}, sizeof(float4)) && aligned({out.to}, 4 * sizeof(*out.to)));
  if (width <= 1024 && rows > 1) {  // heads: a warp each
    launch_overlapped(norm_kernel<warp, Sink>, blocks_for(rows, block / warp), block, 0, stream, x,
                      weight, rows, width, vectors, epsilon, out);
  } else {
    launch_overlapped(norm_kernel<block, Sink>, blocks_for(rows, 1), block, 0, stream, x, weight,
                      rows, width, vectors, epsilon, out);
  }
  check_launch("the RMSNorm kernel");
}

// blockDim: (pairs, heads). head_dim: from one head to the next. vectors: of four pairs.
__global__ void rope_kernel(const float* cos, const float* sin, std::int64_t tokens,
                            std::int64_t heads, std::int64_t head_dim, std::int64_t half,
                            std::int64_t vectors, float* x) {
  await_previous();
  for (std::int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    const float* c = cos + t * half;
    const float* s = sin + t * half;
    for (std::int64_t h = threadIdx.y; h < heads; h += blockDim.y) {
      float* low = x + (t * heads + h) * head_dim;
      float* high = low + half;
      for (std::int64_t v = threadIdx.x; v < vectors; v += blockDim.x) {
        const float4 a = load4(low + 4 * v);
        const float4 b = load4(high + 4 * v);
        const float4 cv = load4(c + 4 * v);
        const float4 sv = load4(s + 4 * v);
        store4(low + 4 * v, {a.x * cv.x - b.x * sv.x, a.y * cv.y - b.y * sv.y,
                             a.z * cv.z - b.z * sv.z, a.w * cv.w - b.w * sv.w});
        store4(high + 4 * v, {b.x * cv.x + a.x * sv.x, b.y * cv.y + a.y * sv.y,
                              b.z * cv.z + a.z * sv.z, b.w * cv.w + a.w * sv.w});
      }
      for (std::int64_t i = 4 * vectors + threadIdx.x; i < half; i += blockDim.x) {
        const float a = low[i];
        const float b = high[i];
        low[i] = a * c[i] - b * s[i];
        high[i] = b * c[i] + a * s[i];
      }
    }
  }
}

// The pairs' elements lie beside each other.
__global__ void rope_pairs_kernel(const float* cos, const float* sin, std::int64_t tokens,
                                  std::int64_t heads, std::int64_t head_dim, std::int64_t half,
                                  float* x) {
  await_previous();
  for (std::int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    const float* c = cos + t * half;
    const float* s = sin + t * half;
    for (std::int64_t h = threadIdx.y; h < heads; h += blockDim.y) {
      float* head = x + (t * heads + h) * head_dim;
      for (std::int64_t i = threadIdx.x; i < half; i += blockDim.x) {
        const float a = head[2 * i];
        const float b = head[2 * i + 1];
        head[2 * i] = a * c[i] - b * s[i];
        head[2 * i + 1] = b * c[i] + a * s[i];
      }
    }
  }
}

__global__ void copy_runs_kernel(const float* from, RunsCopy runs, std::int64_t count, float* to) {
  await_previous();
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const std::int64_t run = i / runs.width;
    const std::int64_t row = run / runs.columns;
    const std::int64_t column = run % runs.columns;
    const std::int64_t at = i % runs.width;
    to[row * runs.to_row + column * runs.to_column + at] =
        from[row * runs.from_row + column * runs.from_column + at];
  }
}

__global__ void scale_kernel(float factor, std::int64_t count, float* x) {
  await_previous();
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    x[i] *= factor;
}

__global__ void add_kernel(const float* from, std::int64_t count, float* x) {
  await_previous();
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    x[i] += from[i];
}

/// What write_bf16 writes: an element, or four of them.
struct Rounded {
  const float* x;
  __device__ float one(std::int64_t i) const { return x[i]; }
  __device__ float4 four(std::int64_t i) const { return load4(x + i); }
};

// exp overflows to infinity for gates below -88, and the quotient is then the right limit, 0.
struct Silu {
  static __device__ float of(float g, float u) { return g / (1.0F + expf(-g)) * u; }
};
struct Relu {
  static __device__ float of(float g, float u) { return (g > 0.0F ? g : 0.0F) * u; }
};
// tanh is 1 or -1 where the cube overflows.
struct Gelu {
  static __device__ float of(float g, float u) {
    constexpr float root = 0.7978845608028654F;  // sqrt(2 / pi)
    return 0.5F * g * (1.0F + tanhf(root * (g + 0.044715F * g * g * g))) * u;
  }
};

template <class Activation>
struct GatedUp {
  const float* gate;
  const float* up;
  static __device__ float of(float g, float u) { return Activation::of(g, u); }
  __device__ float one(std::int64_t i) const { return of(gate[i], up[i]); }
  __device__ float4 four(std::int64_t i) const {
    const float4 g = load4(gate + i);
    const float4 u = load4(up + i);
    return {of(g.x, u.x), of(g.y, u.y), of(g.z, u.z), of(g.w, u.w)};
  }
};

/// As GatedUp.
struct ClampedUp {
  const float* gate;
  const float* up;
  float limit;
  __device__ float of(float g, float u) const {
    // Not fminf, which would make a number of NaN.
    g = g > limit ? limit : g;
    u = u > limit ? limit : u < -limit ? -limit : u;
    return g / (1.0F + expf(-1.702F * g)) * (u + 1.0F);
  }
  __device__ float one(std::int64_t i) const { return of(gate[i], up[i]); }
  __device__ float4 four(std::int64_t i) const {
    const float4 g = load4(gate + i);
    const float4 u = load4(up + i);
    return {of(g.x, u.x), of(g.y, u.y), of(g.z, u.z), of(g.w, u.w)};
  }
};

template <class Source>
__global__ void write_bf16_kernel(Source source, std::int64_t count, std::int64_t vectors,
                                  __nv_bfloat16* out) {
  await_previous();
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (std::int64_t v = first; v < vectors; v += stride) store4(out + 4 * v, source.four(4 * v));
  for (std::int64_t i = 4 * vectors + first; i < count; i += stride) store(out + i, source.one(i));
}

template <class Source>
void write_bf16(const Source& source, bool vector_aligned, std::int64_t count, __nv_bfloat16* out,
                const char* name, cudaStream_t stream) {
  if (count == 0) return;
  const std::int64_t vectors = flat_vectors(count, vector_aligned && aligned({out}, sizeof(uint2)));
  launch_overlapped(write_bf16_kernel<Source>,
                    blocks_for(vectors > 0 ? (count - 1) / 4 + 1 : count, block), block, 0, stream,
                    source, count, vectors, out);
  check_launch(name);
}

}  // namespace

void embed(const __nv_bfloat16* table, const std::int32_t* tokens, std::int64_t count,
           std::int64_t width, float* out, cudaStream_t stream) {
  if (count == 0 || width == 0) return;
  const std::int64_t vectors = row_vectors(width, 8, aligned({table, out}, sizeof(uint4)));
  embed_kernel<<<blocks_for(count, 1), threads_for(vectors > 0 ? vectors : width), 0, stream>>>(
      table, tokens, count, width, vectors, out);
  check_launch("the embedding kernel");
}

void add_bias(const float* bias, std::int64_t rows, std::int64_t width, float* x,
              cudaStream_t stream) {
  if (rows == 0 || width == 0) return;
  const std::int64_t vectors = row_vectors(width, 4, aligned({bias, x}, sizeof(float4)));
  launch_overlapped(bias_kernel, blocks_for(rows, 1), threads_for(vectors > 0 ? vectors : width), 0,
                    stream, bias, rows, width, vectors, x);
  check_launch("the bias kernel");
}

void rms_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t width,
              float epsilon, __nv_bfloat16* out, cudaStream_t stream) {
  launch_norm(x, weight, rows, width, epsilon, Replaced<__nv_bfloat16>{out}, stream);
}

void rms_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t width,
              float epsilon, float* out, cudaStream_t stream) {
  launch_norm(x, weight, rows, width, epsilon, Replaced<float>{out}, stream);
}

void add_norm(const float* from, const float* weight, std::int64_t rows, std::int64_t width,
              float epsilon, float* x, cudaStream_t stream) {
  launch_norm(from, weight, rows, width, epsilon, AddedTo{x}, stream);
}

void rope(const float* cos, const float* sin, std::int64_t tokens, std::int64_t heads,
          const RotaryPart& part, float* x, cudaStream_t stream) {
  const std::int64_t half = part.rotary_dim / 2;
  if (tokens == 0 || heads == 0 || half == 0) return;
  if (part.interleaved) {
    launch_overlapped(rope_pairs_kernel, blocks_for(tokens, 1), row_block(half), 0, stream, cos,
                      sin, tokens, heads, part.head_dim, half, x);
  } else {
    const bool vectors_fit = part.head_dim % 4 == 0 && aligned({cos, sin, x}, sizeof(float4));
    const std::int64_t vectors = row_vectors(half, 4, vectors_fit);
    launch_overlapped(rope_kernel, blocks_for(tokens, 1), row_block(vectors > 0 ? vectors : half),
                      0, stream, cos, sin, tokens, heads, part.head_dim, half, vectors, x);
  }
  check_launch("the RoPE kernel");
}

void silu_multiply(const float* gate, const float* up, std::int64_t count, __nv_bfloat16* out,
                   cudaStream_t stream) {
  write_bf16(GatedUp<Silu>{gate, up}, aligned({gate, up}, sizeof(float4)), count, out,
             "the SiLU kernel", stream);
}

void gelu_multiply(const float* gate, const float* up, std::int64_t count, __nv_bfloat16* out,
                   cudaStream_t stream) {
  write_bf16(GatedUp<Gelu>{gate, up}, aligned({gate, up}, sizeof(float4)), count, out,
             "the GELU kernel", stream);
}

void relu_multiply(const float* gate, const float* up, std::int64_t count, __nv_bfloat16* out,
                   cudaStream_t stream) {
  write_bf16(GatedUp<Relu>{gate, up}, aligned({gate, up}, sizeof(float4)), count, out,
             "the ReLU kernel", stream);
}

void clamped_silu_multiply(const float* gate, const float* up, float limit, std::int64_t count,
                           __nv_bfloat16* out, cudaStream_t stream) {
  write_bf16(ClampedUp{gate, up, limit}, aligned({gate, up}, sizeof(float4)), count, out,
             "the clamped SiLU kernel", stream);
}

void scale(float factor, std::int64_t count, float* x, cudaStream_t stream) {
  if (count == 0) return;
  launch_overlapped(scale_kernel, blocks_for(count, block), block, 0, stream, factor, count, x);
  check_launch("the scaling kernel");
}

void add(const float* from, std::int64_t count, float* x, cudaStream_t stream) {
  if (count == 0) return;
  launch_overlapped(add_kernel, blocks_for(count, block), block, 0, stream, from, count, x);
  check_launch("the adding kernel");
}

void copy_runs(const float* from, const RunsCopy& runs, float* to, cudaStream_t stream) {
  const std::int64_t count = runs.rows * runs.columns * runs.width;
  if (count == 0) return;
  launch_overlapped(copy_runs_kernel, blocks_for(count, block), block, 0, stream, from, runs, count,
                    to);
  check_launch("the kernel that copies runs");
}

void to_bf16(const float* x, std::int64_t count, __nv_bfloat16* out, cudaStream_t stream) {
  write_bf16(Rounded{x}, aligned({x}, sizeof(float4)), count, out, "the rounding kernel", stream);
}

}  // namespace topkv::gpu
