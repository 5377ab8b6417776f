// What a step wants beside the pass over codes, in one launch: the correction of the tail's mass,
// and attention over rare rows.
#include <cmath>

#include "gpu/code_score.cuh"
#include "gpu/code_stages.h"
#include "gpu/kernel_parts.cuh"
#include "gpu/mma.cuh"

namespace topkv::gpu {
namespace {

constexpr int threads = 512;
constexpr int errors_entries = 128;

__device__ __forceinline__ float block_sum(float x, float* shared) {
  const int thread = static_cast<int>(threadIdx.x);
  x = warp_sum(x);
  __syncthreads();
  if (thread % warp == 0) shared[thread / warp] = x;
  __syncthreads();
  return warp_sum(thread % warp < threads / warp ? shared[thread % warp] : 0.0F);
}

/// log of the normal distribution at z.
__device__ __forceinline__ float log_normal(float z) {
  constexpr float half_root = 0.70710678F;
  if (z > 0) return logf(normcdff(z));
  return logf(0.5F * erfcxf(-z * half_root)) - 0.5F * z * z;
}

/// log of the mean of exp(error), errors normal of deviation s and less than x.
__device__ __forceinline__ float log_mean_error(float s, float x) {
  if (s < 1e-6F) return 0.0F;
  const float z = x / s - s;
  if (z > 0) return 0.5F * s * s + log_normal(z) - log_normal(x / s);
  constexpr float half_root = 0.70710678F;  // s² / 2 cancels
  return logf(0.5F * erfcxf(-z * half_root)) + x - 0.5F * (x / s) * (x / s) - log_normal(x / s);
}

/// Of one query head.
__device__ const float* query_of(const CodeScan& scan, int meeting, int g) {
  const int head = meeting % scan.kv_heads;
  return scan.token[meeting / scan.kv_heads].query + (head * scan.group + g) * scan.head_dim;
}

/// The deviation of a score's error for one query head: four threads an axis of the errors.
__device__ float error_deviation(const CodeScan& scan, int meeting, int g, float* shared) {
  static_assert(threads == 4 * code_dims, "each axis has its threads");
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t head = meeting % scan.kv_heads;
  const float* axis = scan.tables + head * HeadTables::floats(scan.key_bytes) + HeadTables::errors +
                      thread / 4 * code_dims;
  const float* query = query_of(scan, meeting, g);
  float dot = 0;
#pragma unroll 4
  for (int i = 4 * (thread % 4); i < scan.head_dim; i += 16) {
    const float4 x = load4(axis + i);
    dot += x.x * query[i] + x.y * query[i + 1] + x.z * query[i + 2] + x.w * query[i + 3];
  }
  dot += __shfl_xor_sync(all_lanes, dot, 1);
  dot += __shfl_xor_sync(all_lanes, dot, 2);
  return scan.scale * sqrtf(block_sum(thread % 4 == 0 ? dot * dot : 0.0F, shared));
}

/// What the codes' errors add to the mass of keys below the threshold, on average over those of the
/// sample, for one query head.
__device__ void correct_mass(const CodeScan& scan, int meeting, int g, std::uint8_t* memory) {
  auto* shared = reinterpret_cast<float*>(memory);
  float* errors = shared + warp;  // means of exp(error), by the distance to the threshold
  const int thread = static_cast<int>(threadIdx.x);
  const ScanRange range = scan.range[meeting];
  const int place = meeting * code_group + g;
  float* result = scan.corrections + place;
  float* squares_of = scan.squares + place;
  if (g >= scan.group) return;
  const float s = error_deviation(scan, meeting, g, shared);
  if (thread == 0) scan.deviations[place] = s;
  if (scan.wanted >= range.end - range.begin) {  // nothing is below
    if (thread == 0) *result = *squares_of = 0.0F;
    return;
  }
  const float threshold = __ldcg(&scan.plans[place].reference) - scan_threshold_log2;
  const float step = fmaxf(s * (s + 4), 1e-6F) * log2_of_e / (errors_entries - 1);
  if (thread < errors_entries) {
    errors[thread] =
        expf(fminf(log_mean_error(s, static_cast<float>(thread) * step / log2_of_e), 60.0F));
  }
  __syncthreads();
  const float* from = scan.scores + static_cast<std::int64_t>(place) * most_sampled;
  const float per_step = 1 / step;
  float plain = 0;
  float corrected = 0;
  float squares = 0;
  float sampled = 0;
  constexpr int at_once = 16;  // loads on their way
#pragma unroll 1
  for (int first = 0; first < most_sampled; first += at_once * threads) {
    float below[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i)
      below[i] = threshold - __ldcg(from + first + i * threads + thread);
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      sampled += below[i] < INFINITY ? 1.0F : 0.0F;
      if (!(below[i] >= 0.0F && below[i] < INFINITY)) continue;
      const float weight = exp2_fast(-below[i]);
      const float place = fminf(below[i] * per_step, errors_entries - 1.001F);
      const int entry = static_cast<int>(place);
      const float part = place - static_cast<float>(entry);
      plain += weight;
      const float mass = weight * (errors[entry] + part * (errors[entry + 1] - errors[entry]));
      corrected += mass;
      squares += mass * mass;
    }
  }
  plain = block_sum(plain, shared);
  corrected = block_sum(corrected, shared);
  squares = block_sum(squares, shared);
  sampled = block_sum(sampled, shared);
  if (thread > 0) return;
  *result = plain > 0 ? logf(corrected / plain) : 0.0F;
  // A sum of squares grows as the number of keys, the square of their sum as its square.
  const auto keys = static_cast<float>(range.end - range.begin);
  *squares_of = corrected > 0 ? squares / (corrected * corrected) * (sampled / keys) : 0.0F;
}

/// What attend_rare keeps of a tile of rows.
struct RareTile {
  static constexpr int rows = threads / 4;
  static constexpr int slices = threads / (code_dims / 2);
  float query[code_group][code_dims];
  float scores[code_group][rows];
  float weights[rows][code_group];
  float high[code_group], mass[code_group], before[code_group];
  float sums[slices][code_group][code_dims];
};

/// One part of a KV head's rare rows for a token, for all heads of the group, a tile at a time:
/// four threads score a row, then a slice of the threads sums the values of some rows, two dims
/// each.
__device__ void attend_rare(const CodeScan& scan, int meeting, int part, std::uint8_t* shared) {
  auto& tile = *reinterpret_cast<RareTile*>(shared);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp;
  const int dim = scan.head_dim;
  const int head = meeting % scan.kv_heads;
  const ScanRange range = scan.range[meeting];
  const int all = max(0, range.rare_end - range.rare_begin);
  const int begin = range.rare_begin + all * part / scan_rare_parts;
  const int end = range.rare_begin + all * (part + 1) / scan_rare_parts;
  const __nv_bfloat16* keys = scan.rare + 2 * head * scan.rare_slots * dim;
  const __nv_bfloat16* values = keys + scan.rare_slots * dim;

  for (int i = thread; i < code_group * code_dims; i += threads) {
    const int g = i / code_dims;
    const int d = i % code_dims;
    tile.query[g][d] =
        g < scan.group && d < dim ? scan.scale * query_of(scan, meeting, g)[d] : 0.0F;
  }
  if (thread < code_group) {
    tile.high[thread] = -INFINITY;
    tile.mass[thread] = 0;
  }
  constexpr int per_slice = RareTile::rows / RareTile::slices;
  const int slice = thread / (code_dims / 2);
  const int pair = 2 * (thread % (code_dims / 2));
  float2 sum[code_group] = {};
  for (int first = begin; first < end; first += RareTile::rows) {
    // All that is read of the rows is asked for at once. (Rows are aligned to four elements.)
    const int row = first + thread / 4;
    uint2 key[code_dims / 16];
#pragma unroll
    for (int i = 0; i < code_dims / 16; ++i) {
      const int d = 16 * i + 4 * (thread % 4);
      key[i] =
          row < end && d < dim
              ? *reinterpret_cast<const uint2*>(keys + static_cast<std::int64_t>(row) * dim + d)
              : uint2{0, 0};
    }
    __nv_bfloat162 value[per_slice];
#pragma unroll
    for (int i = 0; i < per_slice; ++i) {
      const int at = first + slice * per_slice + i;
      value[i] = at < end && pair < dim ? *reinterpret_cast<const __nv_bfloat162*>(
                                              values + static_cast<std::int64_t>(at) * dim + pair)
                                        : __nv_bfloat162{};
    }
    __syncthreads();
    float score[code_group] = {};
#pragma unroll
    for (int i = 0; i < code_dims / 16; ++i) {
      const float2 low = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&key[i].x));
      const float2 high = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&key[i].y));
#pragma unroll
      for (int g = 0; g < code_group; ++g) {
        const float4 q = load4(&tile.query[g][16 * i + 4 * (thread % 4)]);
        score[g] += q.x * low.x + q.y * low.y + q.z * high.x + q.w * high.y;
      }
    }
#pragma unroll
    for (int g = 0; g < code_group; ++g) {
      score[g] += __shfl_xor_sync(all_lanes, score[g], 1);
      score[g] += __shfl_xor_sync(all_lanes, score[g], 2);
      if (thread % 4 == 0) tile.scores[g][thread / 4] = row < end ? score[g] : -INFINITY;
    }
    __syncthreads();
    if (thread / warp < code_group) {  // a warp a head: its softmax
      const int g = thread / warp;
      constexpr int per_lane = RareTile::rows / warp;
      float most = tile.high[g];
#pragma unroll
      for (int i = 0; i < per_lane; ++i) most = fmaxf(most, tile.scores[g][i * warp + lane]);
      most = warp_max(most);
      float mass = 0;
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        const float weight = expf(tile.scores[g][i * warp + lane] - most);
        tile.weights[i * warp + lane][g] = weight;
        mass += weight;
      }
      mass = warp_sum(mass);
      if (lane == 0) {
        tile.before[g] = expf(tile.high[g] - most);
        tile.mass[g] = tile.mass[g] * tile.before[g] + mass;
        tile.high[g] = most;
      }
    }
    __syncthreads();
#pragma unroll
    for (int g = 0; g < code_group; ++g) {
      sum[g].x *= tile.before[g];
      sum[g].y *= tile.before[g];
    }
#pragma unroll
    for (int i = 0; i < per_slice; ++i) {
      const float2 v = __bfloat1622float2(value[i]);
#pragma unroll
      for (int g = 0; g < code_group; g += 4) {
        const float4 w = load4(&tile.weights[slice * per_slice + i][g]);
        const float weight[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sum[g + j].x += weight[j] * v.x;
          sum[g + j].y += weight[j] * v.y;
        }
      }
    }
  }
#pragma unroll
  for (int g = 0; g < code_group; ++g) {
    tile.sums[slice][g][pair] = sum[g].x;
    tile.sums[slice][g][pair + 1] = sum[g].y;
  }
  __syncthreads();
  const int heads = scan.meetings() * scan.group;
  for (int i = thread; i < scan.group * code_dims; i += threads) {
    const int g = i / code_dims;
    const int d = i % code_dims;
    float x = 0;
#pragma unroll
    for (int j = 0; j < RareTile::slices; ++j) x += tile.sums[j][g][d];
    const std::int64_t at = static_cast<std::int64_t>(part) * heads + meeting * scan.group + g;
    const float mass = tile.mass[g];
    if (d < dim) scan.parts.out[at * dim + d] = mass > 0 ? x / mass : 0.0F;
    if (d == 0) scan.parts.lse[at] = mass > 0 ? tile.high[g] + logf(mass) : -INFINITY;
  }
}

/// Blocks: rare_parts for each meeting, and, for a tail, a correction for each query head. Nothing
/// of the pass is read, and what is was there before that began: this begins where the pass leaves
/// room, and ends after it.
__global__ void __launch_bounds__(threads) after_kernel(const __grid_constant__ CodeScan scan) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  let_next_kernel_start();
  const int number = static_cast<int>(blockIdx.x);
  const int rare = scan.meetings() * scan_rare_parts;
  if (number < rare) {
    attend_rare(scan, number / scan_rare_parts, number % scan_rare_parts, shared);
  } else {
    correct_mass(scan, (number - rare) / code_group, (number - rare) % code_group, shared);
  }
  wait_for_previous_kernel();
}

}  // namespace

void follow_pass(const CodeScan& scan, cudaStream_t stream) {
  const int blocks = scan.meetings() * (scan_rare_parts + (scan.tail ? code_group : 0));
  launch_early(scan, dim3(static_cast<unsigned>(blocks)), threads,
               static_cast<int>(sizeof(RareTile)), stream, after_kernel);
}

void allow_follow_pass() {
  TOPKV_CUDA(cudaFuncSetAttribute(after_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  sizeof(RareTile)));
}

}  // namespace topkv::gpu
