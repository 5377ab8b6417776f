// What a mixture of experts does besides products: the choice of experts, rows brought together and
// added up again. And sinks. Memory-bound, and small beside the products.
#include "gpu/network/experts.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

constexpr int warps = block / warp;

/// A score and whose it is; in the order of choices.
struct Choice {
  float score;
  int expert;
};

__device__ __forceinline__ bool before(const Choice& a, const Choice& b) {
  return a.score > b.score || (a.score == b.score && a.expert < b.expert);
}

/// Every lane gets the first of all.
__device__ __forceinline__ Choice first_of(Choice mine) {
  for (int step = warp / 2; step > 0; step /= 2) {
    const Choice other{__shfl_xor_sync(all_lanes, mine.score, step),
                       __shfl_xor_sync(all_lanes, mine.expert, step)};
    if (before(other, mine)) mine = other;
  }
  return mine;
}

/// Takes the first in the order of choices of what is not taken yet. Lane l has the values l,
/// l + 32, …; bit i of its `taken` is the value l + 32 i's. -inf is behind all other values but
/// before nothing at all, so that `count` values can be taken whatever they are. Every lane gets
/// the number.
__device__ __forceinline__ int take_first(const float* values, int count, int lane,
                                          unsigned& taken) {
  Choice best{-INFINITY, count};
  for (int i = 0, e = lane; e < count; ++i, e += warp) {
    if ((taken >> i & 1U) != 0) continue;
    const Choice one{values[e], e};
    if (before(one, best)) best = one;
  }
  best = first_of(best);
  if (best.expert % warp == lane) taken |= 1U << (best.expert / warp);
  return best.expert;
}

__device__ __forceinline__ float sigmoid_of(float score) { return 1.0F / (1.0F + expf(-score)); }

/// Leaves the values of the groups that score highest, and makes all others -inf. scores: room for
/// a score of each group.
__device__ void keep_best_groups(const Routing& routing, int lane, float* values, float* scores) {
  const int groups = static_cast<int>(routing.groups);
  const int size = static_cast<int>(routing.experts) / groups;
  for (int g = lane; g < groups; g += warp) {
    float first = -INFINITY;
    float second = -INFINITY;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      second = fmaxf(second, fminf(first, values[e]));
      first = fmaxf(first, values[e]);
    }
    scores[g] = routing.sigmoid ? first + second : first;
  }
  __syncwarp();
  unsigned taken = 0;
  for (int i = 0; i < routing.chosen_groups; ++i) take_first(scores, groups, lane, taken);
  for (int i = 0, g = lane; g < groups; ++i, g += warp) {
    if ((taken >> i & 1U) != 0) continue;
    for (int e = g * size; e < (g + 1) * size; ++e) values[e] = -INFINITY;
  }
  __syncwarp();
}

// A warp for each token. Its room: what experts are chosen by, and scores of groups. NaN counts as
// -inf there.
__global__ void route_kernel(const float* scores, std::int64_t tokens, Routing routing,
                             std::int32_t* ids, float* weights) {
  extern __shared__ float room[];
  const int experts = static_cast<int>(routing.experts);
  const int k = static_cast<int>(routing.k);
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const int mine = static_cast<int>(threadIdx.x) / warp;
  const int of_block = static_cast<int>(blockDim.x) / warp;
  float* const values = room + mine * (experts + static_cast<int>(routing.groups));
  const std::int64_t stride = std::int64_t{gridDim.x} * of_block;
  for (std::int64_t t = std::int64_t{blockIdx.x} * of_block + mine; t < tokens; t += stride) {
    const float* of = scores + t * experts;
    for (int e = lane; e < experts; e += warp) {
      float value = routing.sigmoid ? sigmoid_of(of[e]) : of[e];
      if (routing.choice_bias != nullptr) value += routing.choice_bias[e];
      values[e] = isnan(value) ? -INFINITY : value;
    }
    __syncwarp();
    if (routing.groups > 1) keep_best_groups(routing, lane, values, values + experts);
    unsigned taken = 0;
    float high = 0;
    float sum = 0;
    for (int j = 0; j < k; ++j) {
      const int expert = take_first(values, experts, lane, taken);
      const float score = of[expert];
      if (j == 0) high = score;
      const float weight = routing.sigmoid ? sigmoid_of(score) : expf(score - high);
      sum += weight;
      if (lane == 0) {
        ids[t * k + j] = expert;
        weights[t * k + j] = weight;
      }
    }
    if (routing.sigmoid) {
      sum = routing.sums_to_one ? sum + routing.least_sum : 1.0F;
    } else if (routing.over_all) {
      sum = 0;
      for (int e = lane; e < experts; e += warp) sum += expf(of[e] - high);
      sum = warp_sum(sum);
    }
    __syncwarp();  // the next token's values, too
    for (int j = lane; j < k; j += warp)
      weights[t * k + j] = weights[t * k + j] * routing.scale / sum;
  }
}

__global__ void expert_scales_kernel(const float* scales, const std::int32_t* ids,
                                     std::int64_t slots, float* weights) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < slots; i += stride)
    weights[i] *= scales[ids[i]];
}

template <class Vector>
__global__ void gather_kernel(const Vector* x, const std::int32_t* slots, std::int64_t count,
                              std::int64_t sharing, std::int64_t vectors, Vector* out) {
  for (std::int64_t r = blockIdx.x; r < count; r += gridDim.x) {
    const Vector* from = x + slots[r] / sharing * vectors;
    for (std::int64_t v = threadIdx.x; v < vectors; v += blockDim.x) out[r * vectors + v] = from[v];
  }
}

__global__ void add_weighted_kernel(const float* from, const float* weights,
                                    const std::int32_t* places, std::int64_t tokens, std::int64_t k,
                                    std::int64_t width, float* x) {
  const std::int64_t across = std::int64_t{gridDim.y} * blockDim.x;
  for (std::int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    for (std::int64_t i = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x; i < width;
         i += across) {
      float sum = x[t * width + i];
      for (std::int64_t slot = t * k; slot < (t + 1) * k; ++slot) {
        const std::int64_t place = places == nullptr ? slot : places[slot];
        sum = fmaf(weights[slot], from[place * width + i], sum);
      }
      x[t * width + i] = sum;
    }
  }
}

// A warp for each head. exp is infinite where the sink takes all, also where no key was seen.
__global__ void sinks_kernel(const float* sinks, const float* lse, std::int64_t rows,
                             std::int64_t heads, std::int64_t head_dim, float* x) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const std::int64_t stride = std::int64_t{gridDim.x} * warps;
  for (std::int64_t r = std::int64_t{blockIdx.x} * warps + threadIdx.x / warp; r < rows;
       r += stride) {
    const float share = 1.0F / (1.0F + expf(sinks[r % heads] - lse[r]));
    for (std::int64_t i = lane; i < head_dim; i += warp) x[r * head_dim + i] *= share;
  }
}

}  // namespace

void route(const float* scores, std::int64_t tokens, const Routing& routing, std::int32_t* ids,
           float* weights, cudaStream_t stream) {
  if (tokens == 0) return;
  constexpr std::int64_t most_bytes = 48 * 1024;  // of shared memory that every device gives
  const std::int64_t bytes =
      (routing.experts + routing.groups) * static_cast<std::int64_t>(sizeof(float));
  const auto of_block = static_cast<int>(std::min<std::int64_t>(most_bytes / bytes, warps));
  route_kernel<<<blocks_for(tokens, of_block), of_block * warp,
                 static_cast<std::size_t>(of_block * bytes), stream>>>(scores, tokens, routing, ids,
                                                                       weights);
  check_launch("the routing kernel");
}

void scale_by_expert(const float* scales, const std::int32_t* ids, std::int64_t slots,
                     float* weights, cudaStream_t stream) {
  if (slots == 0) return;
  expert_scales_kernel<<<blocks_for(slots, block), block, 0, stream>>>(scales, ids, slots, weights);
  check_launch("the kernel of experts' scales");
}

void gather(const __nv_bfloat16* x, const std::int32_t* slots, std::int64_t count,
            std::int64_t sharing, std::int64_t width, __nv_bfloat16* out, cudaStream_t stream) {
  if (count == 0 || width == 0) return;
  const std::int64_t vectors = row_vectors(width, 8, aligned({x, out}, sizeof(uint4)));
  if (vectors > 0) {
    gather_kernel<<<blocks_for(count, 1), threads_for(vectors), 0, stream>>>(
        reinterpret_cast<const uint4*>(x), slots, count, sharing, vectors,
        reinterpret_cast<uint4*>(out));
  } else {
    gather_kernel<<<blocks_for(count, 1), threads_for(width), 0, stream>>>(x, slots, count, sharing,
                                                                           width, out);
  }
  check_launch("the gathering kernel");
}

void add_weighted(const float* from, const float* weights, const std::int32_t* places,
                  std::int64_t tokens, std::int64_t k, std::int64_t width, float* x,
                  cudaStream_t stream) {
  if (tokens == 0 || width == 0) return;
  // Few tokens are spread over several blocks each.
  const dim3 grid(blocks_for(tokens, 1),
                  static_cast<unsigned>(std::min<std::int64_t>((width - 1) / block + 1, 64)));
  add_weighted_kernel<<<grid, block, 0, stream>>>(from, weights, places, tokens, k, width, x);
  check_launch("the kernel that adds up experts");
}

void attend_sinks(const float* sinks, const float* lse, std::int64_t tokens, std::int64_t heads,
                  std::int64_t head_dim, float* x, cudaStream_t stream) {
  if (tokens == 0 || heads == 0) return;
  sinks_kernel<<<blocks_for(tokens * heads, warps), block, 0, stream>>>(sinks, lse, tokens * heads,
                                                                        heads, head_dim, x);
  check_launch("the kernel of sinks");
}

}  // namespace topkv::gpu
