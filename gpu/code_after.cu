// What follows a pass over codes, side by side in one launch: lists in order, the correction of the
// tail's mass, attention over rare rows.
#include <cmath>

#include "gpu/code_score.cuh"
#include "gpu/code_stages.h"
#include "gpu/kernel_parts.cuh"
#include "gpu/mma.cuh"

namespace topkv::gpu {
namespace {

constexpr int threads = 512;
constexpr int warps = threads / warp;
constexpr int errors_entries = 128;
constexpr int kept_rare = 6144;  // of a KV head, in shared memory

/// A KV head's list as positions, ascending unless it is long.
__device__ void order_list(const CodeScan& scan, int head, std::uint8_t* shared) {
  int* keys = reinterpret_cast<int*>(shared);
  int* rare_keys = keys + scan_ordered;
  const int* rare = scan.rare_keys + head * scan.rare_slots;
  if (scan.rare_slots <= kept_rare) {
    for (int i = static_cast<int>(threadIdx.x); i < scan.rare_slots; i += threads)
      rare_keys[i] = rare[i];
    rare = rare_keys;
  }
  wait_for_previous_kernel();
  const int count = min(scan.count[head], scan.capacity);
  const int* list = scan.list + static_cast<std::int64_t>(head) * scan.capacity;
  int* found = scan.found + static_cast<std::int64_t>(head) * (1 + scan.capacity);
  const bool ordered = count <= scan_ordered;
  if (ordered) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) keys[i] = list[i];
  }
  __syncthreads();
  // A key's position is its number and that of the rare ones before it.
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) {
    const int key = ordered ? keys[i] : list[i];
    int place = i;
    if (ordered) {
      place = 0;
#pragma unroll 8
      for (int j = 0; j < count; ++j) place += keys[j] < key ? 1 : 0;
    }
    int low = 0;
    int high = static_cast<int>(scan.rare_slots);
    while (low < high) {
      const int middle = (low + high) / 2;
      if (rare[middle] <= key) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    found[1 + place] = key + low;
  }
  // Who waits for the number sees the list.
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) *const_cast<volatile int*>(found) = count;
}

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

/// What the codes' errors add to the mass of keys below the threshold, on average over those of the
/// sample, for one query head. The plan was there before the pass began.
__device__ void correct_mass(const CodeScan& scan, int head, int g, std::uint8_t* memory) {
  auto* shared = reinterpret_cast<float*>(memory);
  float* errors = shared + warp;  // means of exp(error), by the distance to the threshold
  wait_for_previous_kernel();
  const int thread = static_cast<int>(threadIdx.x);
  const ScanRange range = scan.range[head];
  float* result = scan.corrections + head * code_group + g;
  if (g >= scan.group || scan.wanted >= range.end - range.begin) {  // nothing is below
    if (thread == 0) *result = 0.0F;
    return;
  }
  const float s = scan.scales[head * code_group + g].deviation;
  const float threshold = scan.plans[head * code_group + g].reference - scan_threshold_log2;
  const float step = fmaxf(s * (s + 4), 1e-6F) * log2_of_e / (errors_entries - 1);
  if (thread < errors_entries) {
    errors[thread] =
        expf(fminf(log_mean_error(s, static_cast<float>(thread) * step / log2_of_e), 60.0F));
  }
  __syncthreads();
  const float* from = scan.scores + static_cast<std::int64_t>(head * code_group + g) * most_sampled;
  float plain = 0;
  float corrected = 0;
#pragma unroll
  for (int i = 0; i < most_sampled / threads; ++i) {
    const float below = threshold - from[i * threads + thread];
    if (!(below >= 0.0F && below < INFINITY)) continue;
    const float weight = exp2_fast(-below);
    const float place = fminf(below / step, errors_entries - 1.001F);
    const int entry = static_cast<int>(place);
    const float part = place - static_cast<float>(entry);
    plain += weight;
    corrected += weight * (errors[entry] + part * (errors[entry + 1] - errors[entry]));
  }
  plain = block_sum(plain, shared);
  corrected = block_sum(corrected, shared);
  if (thread == 0) *result = plain > 0 ? logf(corrected / plain) : 0.0F;
}

/// Four elements of a row, zeros beyond it.
__device__ __forceinline__ float4 load_row(const __nv_bfloat16* row, int lane, int head_dim) {
  if (4 * lane >= head_dim) return {0, 0, 0, 0};
  const uint2 x = *reinterpret_cast<const uint2*>(row + 4 * lane);
  const float2 low = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&x.x));
  const float2 high = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&x.y));
  return {low.x, low.y, high.x, high.y};
}

/// One part of a KV head's rare rows: a warp a row at a time, a lane four dims of every query head.
__device__ void attend_rare(const CodeScan& scan, int head, int part, std::uint8_t* shared) {
  auto& outs = *reinterpret_cast<float(*)[warps][code_group][code_dims]>(shared);
  auto& highs = *reinterpret_cast<float(*)[warps][code_group]>(shared + sizeof(outs));
  auto& masses =
      *reinterpret_cast<float(*)[warps][code_group]>(shared + sizeof(outs) + sizeof(highs));
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const int warp_id = static_cast<int>(threadIdx.x) / warp;
  const ScanRange range = scan.range[head];
  float4 query[code_group];
  float4 out[code_group];
  float high[code_group];
  float mass[code_group];
#pragma unroll
  for (int g = 0; g < code_group; ++g) {
    query[g] = out[g] = {0, 0, 0, 0};
    high[g] = -INFINITY;
    mass[g] = 0;
    if (g >= scan.group || 4 * lane >= scan.head_dim) continue;
    // The caller's memory, aligned to its elements only.
    const float* q = scan.query + (head * scan.group + g) * scan.head_dim + 4 * lane;
    query[g] = {q[0], q[1], q[2], q[3]};
  }
  const __nv_bfloat16* keys = scan.rare + 2 * head * scan.rare_slots * scan.head_dim;
  const __nv_bfloat16* values = keys + scan.rare_slots * scan.head_dim;
  for (int row = range.rare_begin + part * warps + warp_id; row < range.rare_end;
       row += scan_rare_parts * warps) {
    const float4 k =
        load_row(keys + static_cast<std::int64_t>(row) * scan.head_dim, lane, scan.head_dim);
    const float4 v =
        load_row(values + static_cast<std::int64_t>(row) * scan.head_dim, lane, scan.head_dim);
#pragma unroll
    for (int g = 0; g < code_group; ++g) {
      const float4 q = query[g];
      const float score = scan.scale * warp_sum(q.x * k.x + q.y * k.y + q.z * k.z + q.w * k.w);
      const float now = fmaxf(high[g], score);
      const float before = expf(high[g] - now);
      const float weight = expf(score - now);
      high[g] = now;
      mass[g] = mass[g] * before + weight;
      out[g] = {out[g].x * before + weight * v.x, out[g].y * before + weight * v.y,
                out[g].z * before + weight * v.z, out[g].w * before + weight * v.w};
    }
  }
#pragma unroll
  for (int g = 0; g < code_group; ++g) {
    store4(&outs[warp_id][g][4 * lane], out[g]);
    if (lane == 0) {
      highs[warp_id][g] = high[g];
      masses[warp_id][g] = mass[g];
    }
  }
  __syncthreads();
  const int heads = scan.kv_heads * scan.group;
  for (int i = static_cast<int>(threadIdx.x); i < scan.group * code_dims; i += threads) {
    const int g = i / code_dims;
    const int d = i % code_dims;
    float most = -INFINITY;
    for (int w = 0; w < warps; ++w) most = fmaxf(most, highs[w][g]);
    float sum = 0;
    float x = 0;
    for (int w = 0; w < warps && most > -INFINITY; ++w) {
      const float f = expf(highs[w][g] - most);
      sum += f * masses[w][g];
      x += f * outs[w][g][d];
    }
    const std::int64_t at = static_cast<std::int64_t>(part) * heads + head * scan.group + g;
    if (d < scan.head_dim) scan.parts.out[at * scan.head_dim + d] = sum > 0 ? x / sum : 0.0F;
    if (d == 0) scan.parts.lse[at] = sum > 0 ? most + logf(sum) : -INFINITY;
  }
}

constexpr int shared_bytes =
    std::max(warps * code_group * (code_dims + 2), scan_ordered + kept_rare) * 4;

/// Blocks: a list for each KV head, rare_parts for each, and, for a tail, a correction for each
/// query head.
__global__ void __launch_bounds__(threads) after_kernel(const __grid_constant__ CodeScan scan) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  let_next_kernel_start();
  int number = static_cast<int>(blockIdx.x);
  if (number < scan.kv_heads) return order_list(scan, number, shared);
  number -= scan.kv_heads;
  if (number < scan.kv_heads * scan_rare_parts) {
    wait_for_previous_kernel();  // its results are not read: lest this ends before it
    return attend_rare(scan, number / scan_rare_parts, number % scan_rare_parts, shared);
  }
  number -= scan.kv_heads * scan_rare_parts;
  correct_mass(scan, number / code_group, number % code_group, shared);
}

}  // namespace

void follow_pass(const CodeScan& scan, cudaStream_t stream) {
  static_assert(sizeof(float) == sizeof(int));
  const int blocks = scan.kv_heads * (1 + scan_rare_parts + (scan.tail ? code_group : 0));
  launch_early(scan, dim3(static_cast<unsigned>(blocks)), threads, shared_bytes, stream,
               after_kernel);
}

void allow_follow_pass() {
  TOPKV_CUDA(cudaFuncSetAttribute(after_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  shared_bytes));
}

}  // namespace topkv::gpu
