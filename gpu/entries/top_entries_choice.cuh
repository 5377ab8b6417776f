// The kernel that chooses among the scores of a head step, its launch and its checks. A Choice is
// the rule: choose(HeadStepChoice<each>) runs on all threads of the head step. Only for .cu files.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "gpu/entries/entry_checks.h"
#include "gpu/entries/top_entries.h"
#include "gpu/entries/top_entries_team.cuh"
#include "topkv/error.h"

namespace topkv::gpu {

/// Whether the current device runs clusters of blocks.
inline bool choice_has_clusters() { return kernel_architecture() >= 90; }

/// The scores of a launch, and the target of the chosen entries.
struct ChoiceTask {
  const float* scores;  // [head_steps, group, count]
  int group;
  int count;
  int* entries;
  int* counts;
  std::int64_t capacity;
};

/// Returns exp(score - log), and 1 if the score equals log. score must not be NaN.
__device__ __forceinline__ float weight_of_number(float score, float log) {
  return score == log ? 1.0F : __expf(score - log);
}
/// Returns exp(score - log), and 0 if the score is NaN.
__device__ __forceinline__ float weight(float score, float log) {
  return isnan(score) ? 0.0F : weight_of_number(score, log);
}

/// A set of a thread's candidates, a bit each.
template <int each>
using Mask = std::conditional_t<(each > 32), unsigned long long, unsigned>;

template <int each>
struct HeadStepChoice {
  const ChoiceTask& task;
  Team<each>& team;
  const std::int64_t head_step = blockIdx.y;

  __device__ void load(int g, float (&x)[each]) const {
    const float* scores = task.scores + (head_step * task.group + g) * task.count;
#pragma unroll
    for (int i = 0; i < each; ++i) x[i] = team.there(i) ? scores[team.number(i)] : -INFINITY;
  }
  __device__ Mask<each> within(const Limit& limit, const float (&x)[each]) const {
    Mask<each> chosen = 0;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const bool mine = team.there(i) && limit.has(ordered(x[i]), team.number(i));
      chosen |= Mask<each>{mine} << i;
    }
    return chosen;
  }

  /// Returns the natural log of the sum of factor(i) exp(score).
  template <class Factor>
  __device__ float log_sum(const float (&x)[each], float most, const Factor& factor) const {
    if (most == -INFINITY) return most;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < each; ++i)
      if (team.there(i)) sum += factor(i) * weight(x[i], most);
    return most + logf(team.sum(sum));
  }

  /// Writes the numbers of the chosen candidates, ascending.
  __device__ void write(Mask<each> chosen) const {
    const int mine = each > 32 ? __popcll(chosen) : __popc(static_cast<unsigned>(chosen));
    int all = 0;
    int* to = task.entries + head_step * task.capacity + team.place(mine, all);
    const unsigned lower = (1U << (threadIdx.x % warp)) - 1;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const bool kept = ((chosen >> i) & 1U) != 0;
      const unsigned of_warp = __ballot_sync(all_lanes, kept);
      if (kept) to[__popc(of_warp & lower)] = team.number(i);
      to += __popc(of_warp);
    }
    if (team.first_thread()) task.counts[head_step] = all;
  }
};

template <int each, class Choice>
__global__ void __launch_bounds__(team_threads)
    choice_kernel(const ChoiceTask task, const Choice choice) {
  __shared__ Exchange exchange;
  await_previous();
  Team<each> team(exchange, task.count);
  choice.choose(HeadStepChoice<each>{task, team});
  team.leave();
}

/// Launches the kernel. A head step gets as many blocks as the device can run at once, with at
/// least four candidates for each thread.
template <class Choice>
void launch_choice(const ChoiceTask& task, const Choice& choice, std::int64_t head_steps,
                   cudaStream_t stream) {
  int device = 0;
  int processors = 0;
  TOPKV_CUDA(cudaGetDevice(&device));
  TOPKV_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const auto blocks_of = [&](int each) { return (task.count - 1) / (team_threads * each) + 1; };
  const int most = choice_has_clusters() ? team_blocks : 1;
  int each = 4;
  while (each < team_each &&
         (blocks_of(each) > most ||
          (blocks_of(each) > 1 && blocks_of(each) * head_steps > 4 * std::int64_t{processors})))
    each *= 2;
  unsigned blocks = 1;
  while (static_cast<int>(blocks) < blocks_of(each)) blocks *= 2;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = blocks;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks, static_cast<unsigned>(head_steps));
  config.blockDim = dim3(team_threads);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = choice_has_clusters() ? 2 : 0;
  const auto run = [&](auto kernel) {
    TOPKV_CUDA(cudaLaunchKernelEx(&config, kernel, task, choice));
  };
  switch (each) {
    case 4:
      return run(choice_kernel<4, Choice>);
    case 8:
      return run(choice_kernel<8, Choice>);
    case 16:
      return run(choice_kernel<16, Choice>);
    case 32:
      return run(choice_kernel<32, Choice>);
    default:
      return run(choice_kernel<team_each, Choice>);
  }
}

template <class Choice>
void choose(const char* what, const float* scores, const HeadStepQueries& queries,
            std::int64_t count, std::int64_t least_capacity, const Choice& choice,
            const ChosenEntries& chosen, cudaStream_t stream) {
  check_queries(what, queries);
  if (count < 1 || count > most_candidates())
    throw Unsupported("CUDA " + std::string(what) + " of " + std::to_string(count) +
                      " candidates, expected 1 to " + std::to_string(most_candidates()));
  if (chosen.capacity < least_capacity)
    throw InvalidArgument("CUDA " + std::string(what) + ": room for " +
                          std::to_string(chosen.capacity) + " entries of a head step, expected " +
                          std::to_string(least_capacity));
  if (queries.head_steps == 0) return;
  ChoiceTask task{};
  task.scores = scores;
  task.group = static_cast<int>(queries.group);
  task.count = static_cast<int>(count);
  task.entries = chosen.entries;
  task.counts = chosen.counts;
  task.capacity = chosen.capacity;
  launch_choice(task, choice, queries.head_steps, stream);
}

}  // namespace topkv::gpu
