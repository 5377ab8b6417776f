// The steps of spherical k-means on a device (clusterer.h), one by one.
//
// Vectors and centroids are fp16, for their elements are at most 1: of bf16 three bits less are
// kept, which show where all vectors point nearly the same way. Sums are of integers, so that their
// order changes nothing: the same vectors give the same clusters each time.
// Everything is in device memory, 16-byte aligned, and asynchronous, on the stream. `width`: what
// vectors of `dim` elements are filled up to with zeros, width_of(dim).
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace topkv::gpu {

inline constexpr std::int64_t most_clustered_dim = 256;
/// 64, 128 or 256. REQUIRES: 0 < dim <= most_clustered_dim.
inline std::int64_t width_of(std::int64_t dim) { return dim <= 64 ? 64 : dim <= 128 ? 128 : 256; }

/// to: [count, width], the vectors [count, dim] made ones of length 1, unless that is 0.
void normalise_vectors(const float* vectors, std::int64_t count, std::int64_t dim, __half* to,
                       cudaStream_t stream);

/// Centroids [count, width]: the vectors of these numbers.
void pick_centroids(const __half* vectors, const int* numbers, std::int64_t count,
                    std::int64_t width, __half* centroids, cudaStream_t stream);

/// Vectors that find_nearest has the current device work on at the same time.
std::int64_t nearest_wave(std::int64_t width);
/// Floats that find_nearest takes: as many zeros as centroids, and -inf behind them.
std::int64_t nearest_offsets(std::int64_t centroids);
/// Of each of the vectors the number of the centroid whose product with it, in float32, is the
/// largest; of equal ones the first. REQUIRES: both counts are at most 2^30, and not 0.
void find_nearest(const __half* vectors, std::int64_t count, const __half* centroids,
                  std::int64_t clusters, std::int64_t width, const float* offsets, int* nearest,
                  cudaStream_t stream);

/// Of some vectors: adds them to what their clusters have. sums: [clusters, width], in steps of
/// 2^-32; sizes: [clusters]. REQUIRES: no more than 2^30 vectors in all.
void add_to_clusters(const __half* vectors, const int* nearest, std::int64_t count,
                     std::int64_t width, std::int64_t* sums, int* sizes, cudaStream_t stream);

/// Centroids of clusters, the directions of their sums; those of sum 0 stay as they are.
void point_centroids(const std::int64_t* sums, std::int64_t clusters, std::int64_t width,
                     __half* centroids, cudaStream_t stream);

/// Centroid number `to` becomes that of `from`, turned a little, for each of the splits; none is
/// both.
struct Split {
  int to, from;
};
void split_centroids(const Split* splits, std::int64_t count, std::int64_t dim, __half* centroids,
                     cudaStream_t stream);

}  // namespace topkv::gpu
