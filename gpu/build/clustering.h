// The steps of spherical k-means on a device (clusterer.h).
//
// Vectors and centroids are fp16, because their elements are at most 1. bf16 has three bits less,
// which matters when all vectors point nearly the same way. Sums are integers, so that the order of
// additions does not matter. The same vectors give the same clusters each time.
//
// All pointers are to device memory, 16-byte aligned. All functions are asynchronous on the stream.
// `width` is width_of(dim): vectors of `dim` elements are padded with zeros to `width` elements.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace topkv::gpu {

inline constexpr std::int64_t most_clustered_dim = 256;
/// The padded size of a vector: 64, 128 or 256. REQUIRES: 0 < dim <= most_clustered_dim.
inline std::int64_t width_of(std::int64_t dim) { return dim <= 64 ? 64 : dim <= 128 ? 128 : 256; }

/// Scales vectors to length 1, except zero vectors. vectors: [count, dim], float32; to: [count,
/// width].
void normalise_vectors(const float* vectors, std::int64_t count, std::int64_t dim, __half* to,
                       cudaStream_t stream);

/// Copies the vectors with these numbers to the centroids. numbers: [count]; centroids: [count,
/// width].
void pick_centroids(const __half* vectors, const int* numbers, std::int64_t count,
                    std::int64_t width, __half* centroids, cudaStream_t stream);

/// The number of vectors that find_nearest processes at the same time on the current device.
std::int64_t nearest_wave(std::int64_t width);
/// The number of floats in `offsets` of find_nearest: a 0 for each centroid, then -inf.
std::int64_t nearest_offsets(std::int64_t centroids);
/// Finds, for each vector, the number of the centroid with the largest inner product, in float32.
/// The first of equal products wins. nearest: [count]. REQUIRES: 0 < count <= 2^30 and 0 < clusters
/// <= 2^30.
void find_nearest(const __half* vectors, std::int64_t count, const __half* centroids,
                  std::int64_t clusters, std::int64_t width, const float* offsets, int* nearest,
                  cudaStream_t stream);

/// Adds vectors to the sums and the sizes of their clusters. sums: [clusters, width], in units of
/// 2^-32; sizes: [clusters]. REQUIRES: at most 2^30 vectors in all calls together.
void add_to_clusters(const __half* vectors, const int* nearest, std::int64_t count,
                     std::int64_t width, std::int64_t* sums, int* sizes, cudaStream_t stream);

/// Sets each centroid to the direction of its cluster's sum. A centroid whose sum is 0 does not
/// change.
void point_centroids(const std::int64_t* sums, std::int64_t clusters, std::int64_t width,
                     __half* centroids, cudaStream_t stream);

/// Centroid `to` becomes centroid `from`, turned a little.
struct Split {
  int to, from;
};
/// Applies the splits. REQUIRES: no centroid is both a `to` and a `from`.
void split_centroids(const Split* splits, std::int64_t count, std::int64_t dim, __half* centroids,
                     cudaStream_t stream);

}  // namespace topkv::gpu
