// Scores of pages and of centroids (entry_scores.h): inner products with rows that are read once.
#include <cmath>
#include <string>

#include "gpu/entries/entry_checks.h"
#include "gpu/entries/entry_scores.h"
#include "gpu/runtime/kernel_parts.cuh"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

constexpr int warps = block / warp;
constexpr int at_once = 8;  // rows that a lane reads a part of before it sums

/// Rows of `width` elements for each head step.
template <class Element>
struct SummaryRows {
  const Element* rows;
  std::int64_t head_step_stride;  // elements
  std::int64_t count;
};

/// Eight elements of a row, and their products with as many of a query.
template <class Element>
struct Eight;
template <>
struct Eight<__nv_bfloat16> {
  uint4 x{};
  __device__ __forceinline__ void load(const __nv_bfloat16* from) {
    x = *reinterpret_cast<const uint4*>(from);
  }
  __device__ __forceinline__ float dot(float4 a, float4 b) const {
    return a.x * low(x.x) + a.y * high(x.x) + a.z * low(x.y) + a.w * high(x.y) + b.x * low(x.z) +
           b.y * high(x.z) + b.z * low(x.w) + b.w * high(x.w);
  }
};
template <>
struct Eight<float> {
  float4 x{}, y{};
  __device__ __forceinline__ void load(const float* from) { x = load4(from), y = load4(from + 4); }
  __device__ __forceinline__ float dot(float4 a, float4 b) const {
    return a.x * x.x + a.y * x.y + a.z * x.z + a.w * x.w + b.x * y.x + b.y * y.y + b.z * y.z +
           b.w * y.w;
  }
};
__device__ __forceinline__ float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float widened(float x) { return x; }

/// x[i], summed over neighbouring lanes: lane l has the sum of element element_of(l).
template <int lanes>
__device__ __forceinline__ float sum_transposed(float (&x)[at_once]) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  int step = lanes / 2;
#pragma unroll
  for (int half = at_once / 2; half > 0; half /= 2, step /= 2) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float mine = upper ? x[i + half] : x[i];
      const float other = upper ? x[i] : x[i + half];
      x[i] = mine + __shfl_xor_sync(all_lanes, other, step);
    }
  }
  float sum = x[0];
#pragma unroll
  for (; step > 0; step /= 2) sum += __shfl_xor_sync(all_lanes, sum, step);
  return sum;
}

/// Width: 8 lanes. split: rows are twice as long as queries, whose positive part meets the first
/// half and whose negative part the second.
template <int lanes, bool split, class Element>
__global__ void __launch_bounds__(block, sizeof(Element) == 2 ? 3 : 2)
    page_and_centroid_kernel(const Element* queries, int group, float scale,
                             SummaryRows<Element> of, float* scores) {
  constexpr int width = 8 * lanes;
  constexpr int dim = split ? width / 2 : width;
  extern __shared__ float coefficients[];  // [group, width]
  await_previous();
  const std::int64_t head_step = blockIdx.y;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < group * width; i += block) {
    const int at = i % width;
    const float q = scale * widened(queries[(head_step * group + i / width) * dim + at % dim]);
    coefficients[i] = !split ? q : at < dim ? fmaxf(q, 0.0F) : fminf(q, 0.0F);
  }
  __syncthreads();
  constexpr int across = warp / lanes;  // rows that a warp reads at the same time
  constexpr int warp_rows = at_once * across;
  const int lane = thread % warp;
  const int part = lane % lanes;
  const std::int64_t first =
      (std::int64_t{blockIdx.x} * warps + thread / warp) * warp_rows + lane / lanes * at_once;
  const Element* rows = of.rows + head_step * of.head_step_stride + 8 * part;
  Eight<Element> x[at_once];
#pragma unroll
  for (int i = 0; i < at_once; ++i)
    if (first + i < of.count) x[i].load(rows + (first + i) * width);
  // The element whose sum this lane has in the end (sum_transposed).
  const int element = part / (lanes / at_once);
  for (int g = 0; g < group; ++g) {
    const float4 a = load4(coefficients + g * width + 8 * part);
    const float4 b = load4(coefficients + g * width + 8 * part + 4);
    float sums[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) sums[i] = x[i].dot(a, b);
    const float score = sum_transposed<lanes>(sums);
    if (part % (lanes / at_once) == 0 && first + element < of.count)
      scores[(head_step * group + g) * of.count + first + element] = score;
  }
}

template <int lanes, bool split, class Element>
void launch_scores(const HeadStepQueries& queries, const Element* data,
                   const SummaryRows<Element>& of, float* scores, cudaStream_t stream) {
  constexpr int block_rows = warps * at_once * (warp / lanes);
  const auto group = static_cast<int>(queries.group);
  launch_overlapped(
      page_and_centroid_kernel<lanes, split, Element>,
      dim3(all_blocks(of.count, block_rows), static_cast<unsigned>(queries.head_steps)), block,
      sizeof(float) * 8 * lanes * static_cast<std::size_t>(group), stream, data, group,
      queries.scale, of, scores);
}

template <class Element>
void score_rows(const HeadStepQueries& queries, const Element* data, const Element* centroids,
                std::int64_t slots, std::int64_t count, float* scores, cudaStream_t stream) {
  check_queries("scores of centroids", queries);
  check_slots("scores of centroids", 0, count, slots);
  if (count <= 0 || queries.head_steps == 0) return;
  const SummaryRows<Element> of{centroids, slots * queries.head_dim, count};
  if (queries.head_dim == 64) {
    launch_scores<8, false>(queries, data, of, scores, stream);
  } else {
    launch_scores<16, false>(queries, data, of, scores, stream);
  }
}

}  // namespace

void score_pages(const HeadStepQueries& queries, const __nv_bfloat16* bounds,
                 std::int64_t page_slots, std::int64_t pages, float* scores, cudaStream_t stream) {
  check_queries("scores of pages", queries);
  check_slots("scores of pages", 0, pages, page_slots);
  if (pages <= 0 || queries.head_steps == 0) return;
  const SummaryRows<__nv_bfloat16> of{bounds, page_slots * 2 * queries.head_dim, pages};
  if (queries.head_dim == 64) {
    launch_scores<16, true>(queries, queries.data, of, scores, stream);
  } else {
    launch_scores<32, true>(queries, queries.data, of, scores, stream);
  }
}

void score_centroids(const HeadStepQueries& queries, const __nv_bfloat16* centroids,
                     std::int64_t slots, std::int64_t count, float* scores, cudaStream_t stream) {
  score_rows(queries, queries.data, centroids, slots, count, scores, stream);
}

void score_centroids(const HeadStepQueries& queries, const float* exact, const float* centroids,
                     std::int64_t slots, std::int64_t count, float* scores, cudaStream_t stream) {
  score_rows(queries, exact, centroids, slots, count, scores, stream);
}

}  // namespace topkv::gpu
