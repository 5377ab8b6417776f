#include "gpu/build/code_encode.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

constexpr int key_block = 128;

/// A warp a vector.
__global__ void __launch_bounds__(block)
    centre_kernel(const __nv_bfloat16* vectors, int count, int dim, float scale, const float* mean,
                  float* out, float* squares, int* not_finite) {
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t vector =
      static_cast<std::int64_t>(blockIdx.x) * (block / warp) + thread / warp;
  if (vector >= count) return;
  float square = 0;
  bool finite = true;
  for (int j = thread % warp; j < dim; j += warp) {
    const float x = __bfloat162float(vectors[vector * dim + j]);
    finite = finite && isfinite(x);
    const float centred = fmaf(x, scale, -mean[j]);
    square = fmaf(centred, centred, square);
    out[vector * dim + j] = centred;
  }
  square = warp_sum(square);
  if (thread % warp == 0) squares[vector] = square;
  if (!finite) *not_finite = 1;
}

/// A thread a key. The last block of codes is filled up with 0.
__global__ void __launch_bounds__(key_block) keys_kernel(KeyTile tile) {
  extern __shared__ unsigned char axis_codes[];  // [axes, key_block]
  const int thread = static_cast<int>(threadIdx.x);
  const int key = static_cast<int>(blockIdx.x) * key_block + thread;
  if (key / 64 * 64 >= tile.count) return;
  if (key < tile.count) {
    float residual = tile.residuals[key];
    for (int axis = 0; axis < tile.axes; ++axis) {
      const KeyLevels levels = tile.levels[axis];
      const float x = tile.along[axis * tile.stride + key];
      const float at = fmaxf((x - levels.low) * levels.per_step, 0.0F);
      const int code = static_cast<int>(fminf(at, levels.most) + 0.5F);
      const float off = x - fmaf(levels.step, static_cast<float>(code), levels.low);
      residual += fmaf(off, off, -x * x);
      axis_codes[axis * key_block + thread] = static_cast<unsigned char>(code);
    }
    residual = residual * tile.per_scale * tile.per_scale;
    tile.residuals[key] = isfinite(residual) ? residual : INFINITY;
  }
  std::uint8_t* to = tile.codes + static_cast<std::int64_t>(key / 64) * 64 * tile.bytes + key % 64;
  for (int byte = 0; byte < tile.bytes; ++byte) {
    unsigned bits = 0;
    for (int i = 0; i < 4 && key < tile.count; ++i) {
      const KeyField field = tile.fields[byte * 4 + i];
      if (field.axis < 0) continue;
      const unsigned code = axis_codes[field.axis * key_block + thread];
      bits |= (code >> field.shift & 3U) << (2 * i);
    }
    to[byte * 64] = static_cast<std::uint8_t>(bits);
  }
}

/// ValueCoder::seed_of.
__device__ std::uint32_t seed_of(std::int64_t value) {
  auto x = static_cast<std::uint64_t>(value) + 1;
  x = (x ^ x >> 33) * 0xFF51AFD7ED558CCDU;
  x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53U;
  return static_cast<std::uint32_t>(x >> 32) | 1;
}

/// A thread four values, of which it makes four bytes: blockIdx.y numbers these. Values beyond the
/// last have no bits.
__global__ void __launch_bounds__(block) values_kernel(ValueTile tile) {
  const int quad = static_cast<int>(blockIdx.x) * block + static_cast<int>(threadIdx.x);
  if (quad / 16 * 64 >= tile.count) return;
  std::uint32_t seeds[4];
  for (int v = 0; v < 4; ++v) seeds[v] = seed_of(tile.first + 4 * quad + v);
  unsigned word = 0;
  for (int byte = 0; byte < 4; ++byte) {
    const int lane = 4 * static_cast<int>(blockIdx.y) + byte;
    for (int half = 0; half < 2; ++half) {
      const int axis = lane + half * tile.lanes;
      if (axis >= tile.axes) continue;
      const float2 levels = tile.levels[axis];
      const std::uint32_t seed = tile.seeds[axis];
      for (int v = 0; v < 4; ++v) {
        if (4 * quad + v >= tile.count) continue;
        const float fraction = static_cast<float>(seeds[v] * seed >> 9);
        const float limit = fmaf(levels.y, (fraction + 0.5F) * 0x1p-23F, levels.x);
        const bool above = tile.along[axis * tile.stride + 4 * quad + v] > limit;
        word |= (above ? 1U : 0U) << (8 * byte + 4 * half + v);
      }
    }
  }
  *reinterpret_cast<unsigned*>(tile.codes + static_cast<std::int64_t>(quad) * tile.lanes +
                               4 * blockIdx.y) = word;
}

unsigned blocks_of(int count, int size) { return static_cast<unsigned>((count + size - 1) / size); }

}  // namespace

void centre(const __nv_bfloat16* vectors, int count, int dim, float scale, const float* mean,
            float* out, float* squares, int* not_finite, cudaStream_t stream) {
  centre_kernel<<<blocks_of(count, block / warp), block, 0, stream>>>(
      vectors, count, dim, scale, mean, out, squares, not_finite);
  check_launch("the kernel that centres vectors");
}

void encode_keys(const KeyTile& tile, cudaStream_t stream) {
  keys_kernel<<<blocks_of(tile.count, key_block), key_block,
                static_cast<std::size_t>(tile.axes * key_block), stream>>>(tile);
  check_launch("the kernel that codes keys");
}

void encode_values(const ValueTile& tile, cudaStream_t stream) {
  const dim3 grid(blocks_of((tile.count + 3) / 4, block), static_cast<unsigned>(tile.lanes / 4));
  values_kernel<<<grid, block, 0, stream>>>(tile);
  check_launch("the kernel that codes values");
}

}  // namespace topkv::gpu
