// Parts of the memory-bound kernels: sizes of launches, loads of four elements where addresses
// allow it, and sums over a warp. Only for .cu files.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "gpu/runtime/handles.h"
#include "gpu/runtime/kernel_architecture.h"

namespace topkv::gpu {

inline constexpr int warp = 32;
inline constexpr int block = 256;
inline constexpr unsigned all_lanes = 0xffffffffU;
// Work is spread by grid-stride loops, so this only has to be enough to fill a device.
inline constexpr std::int64_t max_blocks = 1 << 16;

/// REQUIRES: items > 0, here and below.
inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>(std::min((items - 1) / per_block + 1, max_blocks));
}

/// Threads for one row of `items`: whole warps, at most a block.
inline unsigned threads_for(std::int64_t items) {
  return static_cast<unsigned>(std::clamp<std::int64_t>((items - 1) / warp + 1, 1, block / warp) *
                               warp);
}

/// A block over (items of a row, rows).
inline dim3 row_block(std::int64_t items) {
  unsigned across = 1;
  while (across < warp && across < items) across *= 2;
  return {across, block / across, 1};
}

inline bool aligned(std::initializer_list<const void*> pointers, std::uintptr_t bytes) {
  return std::all_of(pointers.begin(), pointers.end(), [bytes](const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
  });
}

/// Vectors of `lanes` elements in each row of a matrix: 0 unless every row is made of whole ones.
inline std::int64_t row_vectors(std::int64_t width, std::int64_t lanes, bool aligned) {
  return aligned && width % lanes == 0 ? width / lanes : 0;
}

/// Vectors of four elements before the tail of an array.
inline std::int64_t flat_vectors(std::int64_t count, bool aligned) {
  return aligned ? count / 4 : 0;
}

/// Throws Error if the last launch has failed.
inline void check_launch(const char* kernel) {
  check(cudaGetLastError(), kernel, __FILE__, __LINE__);
}

/// Launches a kernel that begins with await_previous(). On compute capability 9.0 and later, if
/// kernels were compiled for it, its blocks start while the last blocks of the kernel before it
/// run.
template <class... Parameters, class... Arguments>
void launch_overlapped(void (*kernel)(Parameters...), dim3 grid, dim3 threads, std::size_t shared,
                       cudaStream_t stream, Arguments&&... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = kernel_architecture() >= 90 ? 1 : 0;
  TOPKV_CUDA(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

/// Lets the next kernel's blocks start, and waits for all writes of the kernel before this one.
/// Every thread calls it before it accesses memory that other kernels write. A wait for this kernel
/// is thus a wait for all kernels before it.
__device__ __forceinline__ void await_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

__device__ inline float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }

/// The two elements of a pair of bf16.
__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000U); }

/// Four elements as bf16, the first in the lowest bits.
__device__ inline uint2 pack4(float4 x) {
  const auto pair = [](float low, float high) {
    return unsigned{__bfloat16_as_ushort(__float2bfloat16_rn(low))} |
           unsigned{__bfloat16_as_ushort(__float2bfloat16_rn(high))} << 16;
  };
  return {pair(x.x, x.y), pair(x.z, x.w)};
}

__device__ inline void store(float* to, float x) { *to = x; }
__device__ inline void store(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }
__device__ inline void store4(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }
__device__ inline void store4(__nv_bfloat16* to, float4 x) {
  *reinterpret_cast<uint2*>(to) = pack4(x);
}

/// Returns the warp's sum or maximum in every lane.
__device__ inline float warp_sum(float x) {
  for (int step = warp / 2; step > 0; step /= 2) x += __shfl_xor_sync(all_lanes, x, step);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int step = warp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, step));
  return x;
}

/// Reduces x over a block of `threads` threads with `of_warp`, and returns the result in every
/// thread. nothing: the neutral element. shared: [threads / warp].
template <int threads, class OfWarp>
__device__ __forceinline__ float of_block(float x, float* shared, float nothing, OfWarp of_warp) {
  const int thread = static_cast<int>(threadIdx.x);
  x = of_warp(x);
  __syncthreads();
  if (thread % warp == 0) shared[thread / warp] = x;
  __syncthreads();
  return of_warp(thread % warp < threads / warp ? shared[thread % warp] : nothing);
}
/// Returns the block's sum or maximum in every thread.
template <int threads>
__device__ __forceinline__ float block_sum(float x, float* shared) {
  return of_block<threads>(x, shared, 0.0F, [](float mine) { return warp_sum(mine); });
}
template <int threads>
__device__ __forceinline__ float block_max(float x, float* shared) {
  return of_block<threads>(x, shared, -INFINITY, [](float mine) { return warp_max(mine); });
}

}  // namespace topkv::gpu
