// Partials of the warps and blocks of an attention kernel (attention_kernel.cuh) in memory, and
// their merge.
#pragma once

#include <cstdint>

#include "gpu/attention/attention_kernel.cuh"
#include "gpu/attention/merge_weights.cuh"

namespace topkv::gpu {

/// The lse of a row. max: the largest score; sum: the sum of weights relative to it.
__device__ __forceinline__ float row_lse(const AttentionTask& task, float max, float sum) {
  return sum > 0.0F ? max * task.scale + logf(sum) : -INFINITY;
}

/// Two elements of the result at `at`, over what is there or merged into it.
__device__ __forceinline__ void store_pair(const AttentionTask& task, std::int64_t at, float x,
                                           float y, const Weights& weights) {
  auto* to = reinterpret_cast<float2*>(task.out + at);
  if (task.merge) {
    const float2 before = *to;
    x = weights.before * before.x + weights.now * x;
    y = weights.before * before.y + weights.now * y;
  }
  *to = make_float2(x, y);
}

template <class T>
__device__ __forceinline__ void store_rows(const AttentionTask& task, const RowTile& rows,
                                           const Running<T>& running) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const WarpPlace<T> warp;
  const int warp_row = warp.part * 16 * T::frags;
  // The lanes of a row, in all warps that split its columns, have read the old lse before one
  // writes the new.
  const auto sync = [] { T::column_warps > 1 ? __syncthreads() : __syncwarp(); };
#pragma unroll
  for (int f = 0; f < T::frags; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + f * 16 + half * 8 + lane / 4;
      const bool valid = row < rows.rows;
      const std::int64_t head = rows.head_index(valid ? row : 0, task);
      const float sum = running.sum[f][half];
      const float lse = row_lse(task, running.max[f][half], sum);
      const float inverse = sum > 0.0F ? 1.0F / sum : 0.0F;
      const Weights weights = merge_weights(task.merge ? task.lse[head] : -INFINITY, lse);
      sync();
      if (!valid) continue;
      const std::int64_t at = head * T::head_dim + warp.columns * T::warp_columns + lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < T::warp_columns / 8; ++d) {
        store_pair(task, at + d * 8, running.out[f][d][half * 2] * inverse,
                   running.out[f][d][half * 2 + 1] * inverse, weights);
      }
      if (lane % 4 == 0 && warp.columns == 0) task.lse[head] = weights.lse;
    }
  }
}

/// Writes the partial of this warp's keys: its columns, and with the first columns the softmax.
template <class T>
__device__ __forceinline__ void write_partial(const Running<T>& running, float* partial) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const WarpPlace<T> warp;
  float* sums = partial + warp.columns * T::warp_columns + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
#pragma unroll
    for (int d = 0; d < T::warp_columns / 8; ++d) {
      *reinterpret_cast<float2*>(sums + row * T::sum_stride + d * 8) =
          make_float2(running.out[0][d][half * 2], running.out[0][d][half * 2 + 1]);
    }
    if (lane % 4 == 0 && warp.columns == 0) {
      float* max = partial + T::tile_rows * T::sum_stride;
      max[row] = running.max[0][half];
      max[T::tile_rows + row] = running.sum[0][half];
    }
  }
}

/// The merge of one row of several partials, four columns at a time. Each lane of a warp knows the
/// maximum and the weight of one partial. partial(i) returns the address of partial i.
template <class T, class Partial>
struct RowMerge {
  Partial partial;
  int count;
  int row;
  float max;     ///< the maximum of all partials
  float weight;  ///< the weight of all partials, relative to max
  float factor;  ///< the factor of partial number `lane`

  __device__ __forceinline__ RowMerge(Partial partial_, int count_, int row_, float scale_log2)
      : partial(partial_), count(count_), row(row_) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float own_max = -INFINITY;
    float own_weight = 0.0F;
    if (lane < count) {
      const float* maxima = partial(lane) + T::tile_rows * T::sum_stride;
      own_max = maxima[row];
      own_weight = maxima[T::tile_rows + row];
    }
    max = own_max;
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
      max = fmaxf(max, __shfl_xor_sync(0xffffffffU, max, step));
    factor = max == -INFINITY ? 0.0F : exp2_fast((own_max - max) * scale_log2);
    weight = factor * own_weight;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) weight += __shfl_xor_sync(0xffffffffU, weight, step);
  }

  /// All lanes of the warp call it. The result is valid if column < head_dim.
  __device__ __forceinline__ float4 sums(int column) const {
    constexpr int at_once = 8;  // loads of other blocks' memory that wait together
    float4 total = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    for (int first = 0; first < count; first += at_once) {
      float4 x[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        x[i] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
        if (first + i < count && column < T::head_dim)
          x[i] =
              *reinterpret_cast<const float4*>(partial(first + i) + row * T::sum_stride + column);
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        // Past the last partial, x is 0 and so is the factor.
        const float f = __shfl_sync(0xffffffffU, factor, (first + i) % 32);
        total.x += f * x[i].x;
        total.y += f * x[i].y;
        total.z += f * x[i].z;
        total.w += f * x[i].w;
      }
    }
    return total;
  }
};

}  // namespace topkv::gpu
