// What a scan summed up, as a partial that is merged with the others of a step.
#include <cmath>

#include "gpu/code_score.cuh"
#include "gpu/code_stages.h"
#include "gpu/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

constexpr int tail_threads = 512;

/// Sums to the tail's partial; it and the rare rows merge into what is there. A block per query
/// head: four threads to a dim, and to an axis.
__global__ void __launch_bounds__(tail_threads)
    finish_kernel(const __grid_constant__ CodeScan scan, int axes) {
  constexpr int parts = tail_threads / code_dims;
  __shared__ float part_sums[parts][code_dims];
  __shared__ float rare_sums[parts][code_dims];
  __shared__ float factor[most_splits];
  __shared__ float share[code_dims];
  __shared__ float whole_mass, whole_reference;
  const int meeting = static_cast<int>(blockIdx.x) / scan.group;
  const int head = meeting % scan.kv_heads;
  const ScanToken& token = scan.token[meeting / scan.kv_heads];
  const int g = static_cast<int>(blockIdx.x) % scan.group;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp;
  const int d = thread % code_dims;
  const int part = thread / code_dims;
  const float* tables =
      scan.tables + static_cast<std::int64_t>(head) * HeadTables::floats(scan.key_bytes);
  constexpr int per_part = code_dims / parts;
  float directions[per_part];
#pragma unroll
  for (int i = 0; i < per_part; ++i) {
    const int axis = part * per_part + i;
    directions[i] = axis < axes ? tables[HeadTables::values + axis * code_dims + d] : 0.0F;
  }
  const float base = tables[HeadTables::base + d];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const auto place = [&](int s) {
    return (static_cast<std::int64_t>(meeting) * scan.splits + s) * code_group + g;
  };
  if (thread < warp && scan.tail) {
    float reference = -INFINITY;
    for (int s = lane; s < scan.splits; s += warp)
      if (scan.masses[place(s)].x > 0) reference = fmaxf(reference, scan.masses[place(s)].y);
    reference = warp_max(reference);
    float mass = 0;
    for (int s = lane; s < scan.splits; s += warp) {
      const float2 m = scan.masses[place(s)];
      factor[s] = m.x > 0 ? exp2f(m.y - reference) : 0.0F;
      mass += m.x * factor[s];
    }
    mass = warp_sum(mass);
    if (lane == 0) {
      whole_mass = mass;
      whole_reference = reference;
    }
  }
  __syncthreads();
  float sum = 0;
#pragma unroll 8
  for (int s = part; scan.tail && s < scan.splits; s += parts)
    sum += d < axes ? factor[s] * scan.sums[place(s) * code_dims + d] : 0.0F;
  part_sums[part][d] = sum;
  __syncthreads();
  const bool any = scan.tail && whole_mass > 0;
  if (part == 0) {
    share[d] =
        any ? (part_sums[0][d] + part_sums[1][d] + part_sums[2][d] + part_sums[3][d]) / whole_mass
            : 0.0F;
  }
  __syncthreads();
  float x = 0;
#pragma unroll
  for (int i = 0; i < per_part; ++i) x += directions[i] * share[part * per_part + i];
  part_sums[part][d] = x;

  // Weights of the tail, the rare rows and what is there already, under one softmax.
  const int heads = scan.meetings() * scan.group;
  const int row = head * scan.group + g;  // among the token's heads
  const int in_parts = meeting * scan.group + g;
  constexpr int sources = scan_rare_parts + 2;
  static_assert(scan_rare_parts <= warp, "a lane weighs a part");
  if (thread < warp) {
    const float tail_lse =
        any ? (log2f(whole_mass) - scan_bias_log2 + whole_reference) / log2_of_e +
                  scan.corrections[meeting * code_group + g]
            : -INFINITY;
    const float before = token.into.lse[row];
    const float rare = lane < scan_rare_parts ? scan.parts.lse[lane * heads + in_parts] : -INFINITY;
    const float high = fmaxf(warp_max(rare), fmaxf(tail_lse, before));
    const auto weight = [&](float lse) { return lse == -INFINITY ? 0.0F : expf(lse - high); };
    const float sum = warp_sum(weight(rare)) + weight(tail_lse) + weight(before);
    const float inverse = sum > 0 ? 1 / sum : 0.0F;
    if (lane < scan_rare_parts) factor[lane] = weight(rare) * inverse;
    if (lane == 0) {
      factor[sources - 2] = weight(tail_lse) * inverse;
      factor[sources - 1] = sum > 0 ? weight(before) * inverse : 1.0F;
      token.into.lse[row] = sum > 0 ? high + logf(sum) : -INFINITY;
      if (scan.tail) {
        const float s = scan.deviations[meeting * code_group + g];
        const float squares = scan.squares[meeting * code_group + g];
        const float2 variance = scan.variances[head];
        token.estimate.lse[row] = tail_lse;
        token.noise[row] = {squares * expm1f(fminf(s * s, largest_tail_variance)),
                            squares * variance.y, variance.x};
      }
    }
  }
  __syncthreads();
  float mix = 0;
#pragma unroll
  for (int i = part; d < scan.head_dim && i < scan_rare_parts; i += parts) {
    if (factor[i] > 0)
      mix += factor[i] * scan.parts.out[(i * heads + in_parts) * scan.head_dim + d];
  }
  rare_sums[part][d] = mix;
  __syncthreads();
  if (part > 0 || d >= scan.head_dim) return;
  float* out = token.into.out + row * scan.head_dim + d;
  const float tail = base + part_sums[0][d] + part_sums[1][d] + part_sums[2][d] + part_sums[3][d];
  if (scan.tail) token.estimate.out[row * scan.head_dim + d] = any ? tail : 0.0F;
  *out = *out * factor[sources - 1] + (any ? tail * factor[sources - 2] : 0.0F) + rare_sums[0][d] +
         rare_sums[1][d] + rare_sums[2][d] + rare_sums[3][d];
}

}  // namespace

bool can_scan_early() {
  // Code for older devices has no such waits, wherever it runs.
  cudaFuncAttributes attributes{};
  TOPKV_CUDA(cudaFuncGetAttributes(&attributes, finish_kernel));
  return attributes.ptxVersion >= 90;
}

void merge_rest(const CodeScan& scan, cudaStream_t stream) {
  launch_early(scan, dim3(static_cast<unsigned>(scan.meetings() * scan.group)), tail_threads, 0,
               stream, finish_kernel, 8 * scan.value_bytes);
}

}  // namespace topkv::gpu
