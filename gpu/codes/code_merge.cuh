// Partials of the parts of a head step, merged by the part that comes last. Only for .cu files.
#pragma once

#include <cmath>

#include "gpu/codes/code_format.cuh"
#include "gpu/codes/code_scan.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {

/// Each of `count` blocks of a head step calls it with all of its threads, when its partial is
/// written. The last one writes the merge.
///
/// from: [count][head_steps * group] heads; arrived: [head_steps], 0 before and after; to: of the
/// token's heads. Returns whether this block was the last.
template <int count, int threads>
__device__ bool merge_parts(const CodeScan& scan, int head_step, const PartialView& from,
                            int* arrived, const PartialView& to) {
  static_assert(count <= warp, "a lane weighs a part");
  __shared__ bool last;
  __shared__ float factor[code_group][count];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % warp;
  __threadfence();
  __syncthreads();
  if (thread == 0) {
    last = atomicAdd(arrived + head_step, 1) + 1 == count;
    if (last) arrived[head_step] = 0;
  }
  __syncthreads();
  if (!last) return false;
  __threadfence();
  const int heads = scan.head_steps() * scan.group;
  const int first = head_step * scan.group;                // among all heads
  const int row = head_step % scan.kv_heads * scan.group;  // among the token's heads
  for (int g = thread / warp; g < scan.group; g += threads / warp) {
    const float lse = lane < count ? __ldcg(from.lse + lane * heads + first + g) : -INFINITY;
    const float high = warp_max(lse);
    const float weight = lse == -INFINITY ? 0.0F : expf(lse - high);
    const float sum = warp_sum(weight);
    if (lane < count) factor[g][lane] = sum > 0 ? weight / sum : 0.0F;
    if (lane == 0) to.lse[row + g] = sum > 0 ? high + logf(sum) : -INFINITY;
  }
  __syncthreads();
  const int dim = scan.head_dim;
  for (int i = thread; i < scan.group * dim; i += threads) {
    const int g = i / dim;
    const float* const x = from.out + first * dim + i;
    float sum = 0;
#pragma unroll
    for (int part = 0; part < count; ++part)
      sum += factor[g][part] * __ldcg(x + static_cast<std::int64_t>(part) * heads * dim);
    to.out[row * dim + i] = sum;
  }
  return true;
}

}  // namespace topkv::gpu
