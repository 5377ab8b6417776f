#include "gpu/build/clustering.h"
#include "gpu/runtime/product_fold.cuh"

namespace topkv::gpu {
namespace {

constexpr double step = 1.0 / 4294967296.0;  // of sums

__device__ double warp_total(double x) {
  for (int distance = warp / 2; distance > 0; distance /= 2)
    x += __shfl_xor_sync(all_lanes, x, distance);
  return x;
}

/// The number of a thread's warp in the launch.
__device__ __forceinline__ std::int64_t warp_number() {
  return (std::int64_t{blockIdx.x} * block + static_cast<int>(threadIdx.x)) / warp;
}

/// A warp writes element(i), i in [0, dim), as a vector of length 1, unless that is 0.
template <class Element>
__device__ __forceinline__ void write_direction(std::int64_t dim, std::int64_t width, __half* to,
                                                bool keep_zero, const Element& element) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  double square = 0;
  for (std::int64_t i = lane; i < dim; i += warp) square += element(i) * element(i);
  square = warp_total(square);
  if (square == 0 && keep_zero) return;
  const double factor = square > 0 ? rsqrt(square) : 0.0;
  for (std::int64_t i = lane; i < width; i += warp)
    to[i] = __double2half(i < dim ? element(i) * factor : 0.0);
}

__global__ void __launch_bounds__(block)
    normalise_kernel(const float* vectors, std::int64_t count, std::int64_t dim, std::int64_t width,
                     __half* to) {
  await_previous();
  const std::int64_t number = warp_number();
  if (number >= count) return;
  const float* vector = vectors + number * dim;
  write_direction(dim, width, to + number * width, false,
                  [&](std::int64_t i) { return static_cast<double>(vector[i]); });
}

__global__ void __launch_bounds__(block)
    pick_kernel(const __half* vectors, const int* numbers, std::int64_t chunks,
                std::int64_t width_chunks, __half* centroids) {
  await_previous();
  const std::int64_t i = std::int64_t{blockIdx.x} * block + static_cast<int>(threadIdx.x);
  if (i >= chunks) return;
  const std::int64_t from = numbers[i / width_chunks] * width_chunks + i % width_chunks;
  reinterpret_cast<uint4*>(centroids)[i] = reinterpret_cast<const uint4*>(vectors)[from];
}

/// The largest of what passes, and its number.
struct Nearest {
  struct State {
    float score;
    int number;
  };
  int count;
  int* nearest;

  __device__ __forceinline__ void begin(State& state) const { state = {-INFINITY, 0}; }
  template <int n>
  __device__ __forceinline__ void add(State& state, const float (&x)[n][2], int column) const {
#pragma unroll
    for (int i = 0; i < n; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (x[i][e] > state.score) state = {x[i][e], column + 8 * i + e};
      }
    }
  }
  __device__ __forceinline__ void finish(State state, int /*z*/, int row) const {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      const float score = __shfl_xor_sync(all_lanes, state.score, distance);
      const int number = __shfl_xor_sync(all_lanes, state.number, distance);
      if (score > state.score || (score == state.score && number < state.number))
        state = {score, number};
    }
    if (row < count && threadIdx.x % 4 == 0) nearest[row] = state.number;
  }
};

__global__ void __launch_bounds__(block)
    add_kernel(const __half* vectors, const int* nearest, std::int64_t count, std::int64_t width,
               unsigned long long* sums, int* sizes) {
  await_previous();
  const std::int64_t i = std::int64_t{blockIdx.x} * block + static_cast<int>(threadIdx.x);
  if (i >= count * width) return;
  const std::int64_t cluster = nearest[i / width];
  const auto steps = static_cast<long long>(__half2float(vectors[i]) * (1 / step));  // exact
  if (steps != 0)
    atomicAdd(sums + cluster * width + i % width, static_cast<unsigned long long>(steps));
  if (i % width == 0) atomicAdd(sizes + cluster, 1);
}

__global__ void __launch_bounds__(block)
    point_kernel(const std::int64_t* sums, std::int64_t clusters, std::int64_t width,
                 __half* centroids) {
  await_previous();
  const std::int64_t number = warp_number();
  if (number >= clusters) return;
  const std::int64_t* sum = sums + number * width;
  write_direction(width, width, centroids + number * width, true,
                  [&](std::int64_t i) { return static_cast<double>(sum[i]) * step; });
}

/// Each element by a factor near 1 that its number and the split's say.
__global__ void __launch_bounds__(block)
    split_kernel(const Split* splits, std::int64_t count, std::int64_t dim, std::int64_t width,
                 __half* centroids) {
  await_previous();
  const std::int64_t number = warp_number();
  if (number >= count) return;
  const Split split = splits[number];
  const __half* from = centroids + split.from * width;
  write_direction(dim, width, centroids + split.to * width, false, [&](std::int64_t i) {
    unsigned hash =
        (static_cast<unsigned>(split.to) * 256U + static_cast<unsigned>(i)) * 2654435761U;
    hash ^= hash >> 15;
    hash *= 2246822519U;
    const double turn = (hash >> 31) != 0 ? 1.0 / 256 : -1.0 / 256;
    return static_cast<double>(__half2float(from[i])) * (1 + turn);
  });
}

dim3 warps_for(std::int64_t count) {
  return {static_cast<unsigned>((count * warp - 1) / block + 1)};
}
dim3 threads_of(std::int64_t count) { return {static_cast<unsigned>((count - 1) / block + 1)}; }

}  // namespace

void normalise_vectors(const float* vectors, std::int64_t count, std::int64_t dim, __half* to,
                       cudaStream_t stream) {
  if (count == 0) return;
  launch_overlapped(normalise_kernel, warps_for(count), block, 0, stream, vectors, count, dim,
                    width_of(dim), to);
}

void pick_centroids(const __half* vectors, const int* numbers, std::int64_t count,
                    std::int64_t width, __half* centroids, cudaStream_t stream) {
  if (count == 0) return;
  launch_overlapped(pick_kernel, threads_of(count * width / 8), block, 0, stream, vectors, numbers,
                    count * width / 8, width / 8, centroids);
}

std::int64_t nearest_wave(std::int64_t width) {
  int device = 0;
  int processors = 0;
  TOPKV_CUDA(cudaGetDevice(&device));
  TOPKV_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const auto of = [&](auto tiling) {
    using Tiling = decltype(tiling);
    return std::int64_t{processors} * Tiling::blocks_each * Tiling::block_rows;
  };
  if (width == 64) return of(FoldTiling<64>());
  return width == 128 ? of(FoldTiling<128>()) : of(FoldTiling<256>());
}

std::int64_t nearest_offsets(std::int64_t centroids) { return fold_padded(centroids); }

void find_nearest(const __half* vectors, std::int64_t count, const __half* centroids,
                  std::int64_t clusters, std::int64_t width, const float* offsets, int* nearest,
                  cudaStream_t stream) {
  const FoldTask<__half> task{{vectors, static_cast<int>(count), width},
                              {centroids, static_cast<int>(clusters), width},
                              1.0F,
                              offsets};
  const Nearest fold{static_cast<int>(count), nearest};
  if (width == 64) {
    launch_fold<64>(task, 1, fold, stream);
  } else if (width == 128) {
    launch_fold<128>(task, 1, fold, stream);
  } else {
    launch_fold<256>(task, 1, fold, stream);
  }
}

void add_to_clusters(const __half* vectors, const int* nearest, std::int64_t count,
                     std::int64_t width, std::int64_t* sums, int* sizes, cudaStream_t stream) {
  if (count == 0) return;
  launch_overlapped(add_kernel, threads_of(count * width), block, 0, stream, vectors, nearest,
                    count, width, reinterpret_cast<unsigned long long*>(sums), sizes);
}

void point_centroids(const std::int64_t* sums, std::int64_t clusters, std::int64_t width,
                     __half* centroids, cudaStream_t stream) {
  if (clusters == 0) return;
  launch_overlapped(point_kernel, warps_for(clusters), block, 0, stream, sums, clusters, width,
                    centroids);
}

void split_centroids(const Split* splits, std::int64_t count, std::int64_t dim, __half* centroids,
                     cudaStream_t stream) {
  if (count == 0) return;
  launch_overlapped(split_kernel, warps_for(count), block, 0, stream, splits, count, dim,
                    width_of(dim), centroids);
}

}  // namespace topkv::gpu
