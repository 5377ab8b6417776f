#include <cmath>

#include "gpu/attention/merge_weights.cuh"
#include "gpu/attention/step_io.h"
#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {
namespace {

__global__ void __launch_bounds__(block) take_kernel(const __grid_constant__ StepInput input) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * block + threadIdx.x;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * block;
  for (int form = 0; form < input.forms; ++form) {
    const std::int64_t to = form * input.q_count;
    for (std::int64_t i = first; i < input.q_count; i += step) {
      const float x = input.q[form][i];
      if (input.host_q != nullptr) input.host_q[to + i] = x;
      store(input.queries + to + i, x);
    }
  }
  if (input.host_q == nullptr) return;
  for (std::int64_t i = first; i < input.kv_count; i += step) {
    input.host_k[i] = input.k[i];
    if (input.v != nullptr) input.host_v[i] = input.v[i];
  }
}

constexpr int give_threads = 1024;

/// A warp. What it reads of `found` is there. own: there is of_own.
template <bool own>
__device__ void give_head(const StepParts& parts, std::int64_t head, const PartialView& to) {
  const std::int64_t head_dim = to.head_dim;
  const PartialView& exact = parts.exact;
  const PartialView& found = parts.found;
  const TailParts& context = parts.of_context;
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const bool any_tail = context.estimate.out != nullptr;
  // All is asked for at once: some of it lies in the host's memory.
  const auto lse_of = [&](const PartialView& part) {
    return part.out != nullptr ? part.lse[head] : -INFINITY;
  };
  const float found_lse = lse_of(found);
  const float listed_lse = lse_of(parts.listed);
  const float before = exact.lse[head];
  Weights tails{1.0F, 0.0F, lse_of(context.estimate)};
  Weights rare{1.0F, 0.0F, lse_of(context.exact)};
  if constexpr (own) {
    tails = merge_weights(tails.lse, lse_of(parts.of_own.estimate));
    rare = merge_weights(rare.lse, lse_of(parts.of_own.exact));
  }
  float size = 0;
  float apart = 0;
  float between = 0;  // the two estimates
  Weights all{};
  constexpr int at_once = 4;
  for (std::int64_t first = lane; first < head_dim; first += at_once * warp) {
    float resident[at_once];
    float few[at_once];
    float theirs[at_once];
    float near[at_once];
    float estimated[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const std::int64_t d = first + i * warp;
      const auto value = [&](const PartialView& part) {
        return part.out != nullptr && d < head_dim ? part.out[head * head_dim + d] : 0.0F;
      };
      theirs[i] = value(found);
      near[i] = value(parts.listed);
      resident[i] = value(exact);
      few[i] = value(context.exact);
      estimated[i] = value(context.estimate);
      if constexpr (own) {
        few[i] = rare.before * few[i] + rare.now * value(parts.of_own.exact);
        const float other = value(parts.of_own.estimate);
        between += (estimated[i] - other) * (estimated[i] - other);
        estimated[i] = tails.before * estimated[i] + tails.now * other;
      }
    }
    const Weights beside = merge_weights(before, rare.lse);
    const Weights here = merge_weights(beside.lse, listed_lse);
    const Weights some = merge_weights(here.lse, found_lse);
    all = merge_weights(some.lse, tails.lse);
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const std::int64_t d = first + i * warp;
      if (d >= head_dim) break;
      float x = beside.before * resident[i] + beside.now * few[i];
      x = here.before * x + here.now * near[i];
      x = all.before * (some.before * x + some.now * theirs[i]) + all.now * estimated[i];
      to.out[head * head_dim + d] = x;
      size += x * x;
      apart += (x - estimated[i]) * (x - estimated[i]);
    }
  }
  const float lse_of_all = __shfl_sync(all_lanes, all.lse, 0);
  __syncwarp();  // all lanes have read the old lse, which may lie there
  if (lane == 0 && to.lse != nullptr) to.lse[head] = lse_of_all;
  if (!any_tail) return;
  size = warp_sum(size);
  apart = warp_sum(apart);
  if constexpr (own) between = warp_sum(between);
  if (lane > 0) return;
  // src/device/tail_figures.h
  const float share = tails.lse == -INFINITY ? 0.0F : expf(tails.lse - lse_of_all);
  TailNoise noise = context.noise[head];
  if constexpr (own) noise = joined(tails.before, noise, parts.of_own.noise[head], between);
  const float squared = noise.weights * (noise.spread + apart) + noise.values;
  atomicAdd(parts.sums, static_cast<double>(1 - share));
  if (share > 0 && size > 0)
    atomicAdd(parts.sums + 1, static_cast<double>(share * sqrtf(squared / size)));
}

/// A warp a head, or in turn. Where the host is waited for, of one block: one thread asks its
/// memory, for many that do take turns there, 1 µs each.
template <bool own>
__global__ void __launch_bounds__(give_threads)
    give_kernel(const __grid_constant__ StepParts parts, const __grid_constant__ PartialView out) {
  if (parts.ready != nullptr) {
    if (threadIdx.x == 0) {
      int turn = 0;
      do {
        asm volatile("ld.acquire.sys.global.s32 %0, [%1];"
                     : "=r"(turn)
                     : "l"(parts.ready)
                     : "memory");
      } while (turn != parts.turn);
    }
    __syncthreads();
  }
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * blockDim.x / warp;
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / warp;
  for (std::int64_t head = first; head < out.heads; head += warps) give_head<own>(parts, head, out);
}

}  // namespace

void copy_in(const StepInput& input, cudaStream_t stream) {
  take_kernel<<<blocks_for(std::max(input.q_count, input.kv_count), block), block, 0, stream>>>(
      input);
  check_launch("the kernel that takes a step");
}

void give_step(const StepParts& parts, const PartialView& out, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((out.heads - 1) / (block / warp) + 1);
  const bool waits = parts.ready != nullptr;
  const auto kernel = parts.of_own.exact.out != nullptr ? give_kernel<true> : give_kernel<false>;
  kernel<<<waits ? 1 : blocks, waits ? give_threads : block, 0, stream>>>(parts, out);
  check_launch("the kernel that gives a step's results");
}

}  // namespace topkv::gpu
