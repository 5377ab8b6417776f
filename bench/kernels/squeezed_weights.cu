// Importances of clusters for a question (squeezed_attention.h): products of all its tokens with
// all centroids, twice, as writing them would take longer.
#include <cmath>
#include <string>

#include "bench/kernels/squeezed_attention.h"
#include "bench/kernels/squeezed_checks.h"
#include "gpu/runtime/product_fold.cuh"

namespace topkv::gpu {
namespace {

constexpr float log2_e = 1.4426950408889634F;

/// Of each cluster log2 N_j.
__global__ void __launch_bounds__(block)
    members_kernel(const int* begin, std::int64_t slots, int count, int padded, float* logs) {
  await_previous();
  const int i = static_cast<int>(blockIdx.x) * block + static_cast<int>(threadIdx.x);
  const std::int64_t head_step = blockIdx.y;
  if (i >= padded) return;
  const int* of = begin + head_step * (slots + 1);
  logs[head_step * padded + i] =
      i < count ? log2f(static_cast<float>(of[i + 1] - of[i])) : -INFINITY;
}

/// Sums of 2^x, relative to the largest x so far.
struct LogSum {
  struct State {
    float most, sum;
  };
  int tokens, padded;
  float* offsets;  // of a token -log2 of its sum; -inf: it has no say

  __device__ __forceinline__ void begin(State& state) const { state = {-1e30F, 0.0F}; }
  template <int n>
  __device__ __forceinline__ void add(State& state, const float (&x)[n][2], int /*column*/) const {
    float most = state.most;
#pragma unroll
    for (int i = 0; i < n; ++i) most = fmaxf(most, fmaxf(x[i][0], x[i][1]));
    float sum = state.sum * exp2_fast(state.most - most);
#pragma unroll
    for (int i = 0; i < n; ++i) sum += exp2_fast(x[i][0] - most) + exp2_fast(x[i][1] - most);
    state = {most, sum};
  }
  __device__ __forceinline__ void finish(State state, int z, int row) const {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2) {
      const float most = __shfl_xor_sync(all_lanes, state.most, distance);
      const float sum = __shfl_xor_sync(all_lanes, state.sum, distance);
      const float both = fmaxf(most, state.most);
      state = {both, state.sum * exp2_fast(state.most - both) + sum * exp2_fast(most - both)};
    }
    if (row >= padded || threadIdx.x % 4 != 0) return;
    const bool has_say = row < tokens && state.sum > 0 && state.sum < INFINITY;
    offsets[std::int64_t{z} * padded + row] =
        has_say ? -(state.most + log2f(state.sum)) : -INFINITY;
  }
};

/// The natural log of sums of 2^x.
struct SumLog {
  struct State {
    float sum;
  };
  int count;
  float* scores;

  __device__ __forceinline__ void begin(State& state) const { state.sum = 0; }
  template <int n>
  __device__ __forceinline__ void add(State& state, const float (&x)[n][2], int /*column*/) const {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      // (What is not a number is of a token that has no say.)
      state.sum += exp2_fast(fmaxf(x[i][0], -INFINITY)) + exp2_fast(fmaxf(x[i][1], -INFINITY));
    }
  }
  __device__ __forceinline__ void finish(State state, int z, int row) const {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2)
      state.sum += __shfl_xor_sync(all_lanes, state.sum, distance);
    if (row < count && threadIdx.x % 4 == 0)
      scores[std::int64_t{z} * count + row] = logf(state.sum);
  }
};

}  // namespace

std::int64_t weigh_workspace(const SqueezedQueries& queries, std::int64_t count) {
  return queries.head_steps * (fold_padded(count) + queries.group * fold_padded(queries.tokens));
}

void weigh_clusters(const SqueezedQueries& queries, const __nv_bfloat16* centroids,
                    std::int64_t slots, std::int64_t count, const DeviceClusters& clusters,
                    float* workspace, float* scores, cudaStream_t stream) {
  const std::string what = "importances of clusters";
  check_squeezed(what, queries.tokens, queries.head_steps, queries.group, queries.head_dim,
                 queries.scale);
  check_slots(what, 0, count, slots);
  check_slots(what, 0, count, clusters.slots);
  if (count <= 0 || queries.head_steps == 0) return;
  const auto heads = static_cast<int>(queries.head_steps * queries.group);
  const std::int64_t padded = fold_padded(count);
  float* const tokens_offsets = workspace + queries.head_steps * padded;
  launch_overlapped(members_kernel,
                    dim3(all_blocks(padded, block), static_cast<unsigned>(queries.head_steps)),
                    block, 0, stream, clusters.begin, clusters.slots, static_cast<int>(count),
                    static_cast<int>(padded), workspace);
  const FoldRows<__nv_bfloat16> of_tokens{queries.data, static_cast<int>(queries.tokens),
                                          heads * queries.head_dim, queries.head_dim, 1};
  const FoldRows<__nv_bfloat16> of_clusters{centroids, static_cast<int>(count), queries.head_dim,
                                            slots * queries.head_dim,
                                            static_cast<int>(queries.group)};
  const float scale = queries.scale * log2_e;
  const LogSum sums{static_cast<int>(queries.tokens), static_cast<int>(fold_padded(queries.tokens)),
                    tokens_offsets};
  const SumLog logs{static_cast<int>(count), scores};
  const auto launch = [&](auto dim) {
    constexpr int head_dim = decltype(dim)::value;
    launch_fold<head_dim, __nv_bfloat16>({of_tokens, of_clusters, scale, workspace}, heads, sums,
                                         stream);
    launch_fold<head_dim, __nv_bfloat16>({of_clusters, of_tokens, scale, tokens_offsets}, heads,
                                         logs, stream);
  };
  if (queries.head_dim == 64) {
    launch(std::integral_constant<int, 64>());
  } else {
    launch(std::integral_constant<int, 128>());
  }
}

}  // namespace topkv::gpu
