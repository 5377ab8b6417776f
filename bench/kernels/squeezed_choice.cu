#include <cmath>

#include "bench/kernels/squeezed_choice.h"
#include "gpu/entries/top_entries_choice.cuh"

namespace topkv::gpu {
namespace {

/// Writes the rows of the clusters chosen.
template <int each>
__device__ void write_rows(const HeadStepChoice<each>& choice, const DeviceClusters& clusters,
                           Mask<each> chosen) {
  const int* begin = clusters.begin + choice.head_step * (clusters.slots + 1);
  const int* rows = clusters.rows + choice.head_step * clusters.row_slots;
  int mine = 0;
#pragma unroll
  for (int i = 0; i < each; ++i) {
    if (((chosen >> i) & 1U) != 0)
      mine += begin[choice.team.number(i) + 1] - begin[choice.team.number(i)];
  }
  int all = 0;
  int* to =
      choice.task.entries + choice.head_step * choice.task.capacity + choice.team.place(mine, all);
  const int lane = static_cast<int>(threadIdx.x) % warp;
#pragma unroll 1
  for (int i = 0; i < each; ++i) {
    const bool kept = ((chosen >> i) & 1U) != 0;
    const int first = kept ? begin[choice.team.number(i)] : 0;
    const int size = kept ? begin[choice.team.number(i) + 1] - first : 0;
    int upto = size;
#pragma unroll
    for (int step = 1; step < warp; step *= 2) {
      const int other = __shfl_up_sync(all_lanes, upto, step);
      if (lane >= step) upto += other;
    }
    const int of_warp = __shfl_sync(all_lanes, upto, warp - 1);
    for (int at = 0; at < of_warp; at += warp) {
      // The cluster that the lane's row is in: the first whose rows end behind it.
      const int row = at + lane;
      int cluster = 0;
#pragma unroll
      for (int step = warp / 2; step > 0; step /= 2)
        if (__shfl_sync(all_lanes, upto, cluster + step - 1) <= row) cluster += step;
      const int end = __shfl_sync(all_lanes, upto, cluster);
      const int its_size = __shfl_sync(all_lanes, size, cluster);
      const int its_first = __shfl_sync(all_lanes, first, cluster);
      if (row < of_warp) to[row] = rows[its_first + row - (end - its_size)];
    }
    to += of_warp;
  }
  if (choice.team.first_thread()) choice.task.counts[choice.head_step] = all;
}

/// Clusters above a threshold for any head: their rows.
struct Important {
  DeviceClusters clusters;
  float log_threshold;

  template <int each>
  __device__ void choose(const HeadStepChoice<each>& choice) const {
    const ChoiceTask& task = choice.task;
    const int* begin = clusters.begin + choice.head_step * (clusters.slots + 1);
    const auto members = [&](int i) {
      const int number = choice.team.number(i);
      return static_cast<float>(begin[number + 1] - begin[number]);
    };
    Mask<each> chosen = 0;
    for (int g = 0; g < task.group; ++g) {
      float x[each];
      choice.load(g, x);
      const Range range = choice.team.range_of(x);
      const float log_sum = choice.log_sum(x, range.most, members);
      if (log_sum == -INFINITY) continue;  // no score is finite: nothing is important
      const float least = log_threshold + log_sum;
#pragma unroll
      for (int i = 0; i < each; ++i)
        chosen |= Mask<each>{choice.team.there(i) && x[i] >= least} << i;
    }
    write_rows(choice, clusters, chosen);
  }
};

}  // namespace

void choose_important(const float* scores, const HeadStepQueries& queries, std::int64_t count,
                      const DeviceClusters& clusters, float log_threshold,
                      const ChosenEntries& chosen, cudaStream_t stream) {
  check_slots("choice of the important", 0, count, clusters.slots);
  choose("choice of the important", scores, queries, count, clusters.row_slots,
         Important{clusters, log_threshold}, chosen, stream);
}

}  // namespace topkv::gpu
