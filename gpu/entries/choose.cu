// Choices among scores (selection.h).
#include <cmath>
#include <limits>
#include <string>

#include "gpu/entries/choice_team.cuh"
#include "gpu/entries/selection.h"
#include "gpu/entries/selection_checks.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

struct ChoiceTask {
  const float* scores;  // [meetings, group, count]
  int group;
  int count;
  int wanted;  // of best or heaviest
  int* entries;
  int* counts;
  std::int64_t capacity;
  float* shares;
  DeviceClusters clusters;
  float log_threshold;
};

/// exp(score - log). An infinite score has all the weight.
__device__ __forceinline__ float weight_of_number(float score, float log) {
  return score == log ? 1.0F : __expf(score - log);
}
/// 0 of what is not a number.
__device__ __forceinline__ float weight(float score, float log) {
  return isnan(score) ? 0.0F : weight_of_number(score, log);
}

/// Which of a thread's candidates.
template <int each>
using Mask = std::conditional_t<(each > 32), unsigned long long, unsigned>;

template <int each>
struct MeetingChoice {
  const ChoiceTask& task;
  Team<each>& team;
  const std::int64_t meeting = blockIdx.y;

  __device__ void load(int g, float (&x)[each]) const {
    const float* scores = task.scores + (meeting * task.group + g) * task.count;
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

  /// The natural log of the sum of exp(score), with a factor for each candidate.
  template <class Factor>
  __device__ float log_sum(const float (&x)[each], float most, const Factor& factor) const {
    if (most == -INFINITY) return most;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < each; ++i)
      if (team.there(i)) sum += factor(i) * weight(x[i], most);
    return most + logf(team.sum(sum));
  }

  /// Writes the numbers of those chosen, ascending.
  __device__ void write(Mask<each> chosen) const {
    const int mine = each > 32 ? __popcll(chosen) : __popc(static_cast<unsigned>(chosen));
    int all = 0;
    int* to = task.entries + meeting * task.capacity + team.place(mine, all);
    const unsigned lower = (1U << (threadIdx.x % warp)) - 1;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const bool kept = ((chosen >> i) & 1U) != 0;
      const unsigned of_warp = __ballot_sync(all_lanes, kept);
      if (kept) to[__popc(of_warp & lower)] = team.number(i);
      to += __popc(of_warp);
    }
    if (team.first_thread()) task.counts[meeting] = all;
  }

  /// Writes the rows of the clusters chosen.
  __device__ void write_rows(Mask<each> chosen) const {
    const int* begin = task.clusters.begin + meeting * (task.clusters.slots + 1);
    const int* rows = task.clusters.rows + meeting * task.clusters.row_slots;
    int mine = 0;
#pragma unroll
    for (int i = 0; i < each; ++i) {
      if (((chosen >> i) & 1U) != 0) mine += begin[team.number(i) + 1] - begin[team.number(i)];
    }
    int all = 0;
    int* to = task.entries + meeting * task.capacity + team.place(mine, all);
    const int lane = static_cast<int>(threadIdx.x) % warp;
#pragma unroll 1
    for (int i = 0; i < each; ++i) {
      const bool kept = ((chosen >> i) & 1U) != 0;
      const int first = kept ? begin[team.number(i)] : 0;
      const int size = kept ? begin[team.number(i) + 1] - first : 0;
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
    if (team.first_thread()) task.counts[meeting] = all;
  }
};

/// Those that are among the best of any head.
struct Best {
  template <int each>
  static __device__ void choose(const MeetingChoice<each>& choice) {
    Mask<each> chosen = 0;
    for (int g = 0; g < choice.task.group; ++g) {
      float x[each];
      choice.load(g, x);
      const Range range = choice.team.range_of(x);
      chosen |= choice.within(choice.team.limit_of(choice.task.wanted, x, range), x);
    }
    choice.write(chosen);
  }
};

/// Those that have most of the heads' softmax.
struct Heaviest {
  template <int each>
  static __device__ void choose(const MeetingChoice<each>& choice) {
    const ChoiceTask& task = choice.task;
    float logs[most_group];
    float x[each];
    float sums[each];  // NaN: no head has a score, so that it comes behind weights of 0
#pragma unroll
    for (int i = 0; i < each; ++i) sums[i] = NAN;
    Range range{};
    for (int g = 0; g < task.group; ++g) {
      choice.load(g, x);
      range = choice.team.range_of(x);
      logs[g] = choice.log_sum(x, range.most, [](int) { return 1.0F; });
      if (task.group == 1) break;
#pragma unroll
      for (int i = 0; i < each; ++i) {
        // The sum of two that are no less than 0; of a number and none: the number.
        const float mine = weight_of_number(x[i], logs[g]);
        sums[i] = fmaxf(sums[i] + mine, fmaxf(sums[i], mine));
      }
    }
    // Of one head: by its scores, which have the order of its weights.
    if (task.group > 1) range = choice.team.range_of(sums);
    const Mask<each> chosen =
        task.group > 1 ? choice.within(choice.team.limit_of(task.wanted, sums, range), sums)
                       : choice.within(choice.team.limit_of(task.wanted, x, range), x);
    for (int g = 0; g < task.group; ++g) {
      if (task.group > 1) choice.load(g, x);
      float share = 0;
#pragma unroll
      for (int i = 0; i < each; ++i)
        if (((chosen >> i) & 1U) != 0) share += weight(x[i], logs[g]);
      share = choice.team.sum(share);
      if (choice.team.first_thread())
        task.shares[choice.meeting * task.group + g] = fminf(share, 1.0F);
    }
    choice.write(chosen);
  }
};

/// Clusters above a threshold for any head: their rows.
struct Important {
  template <int each>
  static __device__ void choose(const MeetingChoice<each>& choice) {
    const ChoiceTask& task = choice.task;
    const int* begin = task.clusters.begin + choice.meeting * (task.clusters.slots + 1);
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
      const float least = task.log_threshold + log_sum;
#pragma unroll
      for (int i = 0; i < each; ++i)
        chosen |= Mask<each>{choice.team.there(i) && x[i] >= least} << i;
    }
    choice.write_rows(chosen);
  }
};

template <int each, class Choice>
__global__ void __launch_bounds__(team_threads) choice_kernel(const ChoiceTask task) {
  __shared__ Exchange exchange;
  await_previous();
  Team<each> team(exchange, task.count);
  Choice::choose(MeetingChoice<each>{task, team});
  team.leave();
}

bool has_clusters() { return kernel_architecture() >= 90; }

/// As many blocks for a meeting as the device has room for, of at least four candidates a thread.
template <class Choice>
void launch(const ChoiceTask& task, std::int64_t meetings, cudaStream_t stream) {
  int device = 0;
  int processors = 0;
  TOPKV_CUDA(cudaGetDevice(&device));
  TOPKV_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const auto blocks_of = [&](int each) { return (task.count - 1) / (team_threads * each) + 1; };
  const int most = has_clusters() ? team_blocks : 1;
  int each = 4;
  while (each < team_each &&
         (blocks_of(each) > most ||
          (blocks_of(each) > 1 && blocks_of(each) * meetings > 4 * std::int64_t{processors})))
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
  config.gridDim = dim3(blocks, static_cast<unsigned>(meetings));
  config.blockDim = dim3(team_threads);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = has_clusters() ? 2 : 0;
  const auto run = [&](auto kernel) { TOPKV_CUDA(cudaLaunchKernelEx(&config, kernel, task)); };
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
void choose(const char* what, const float* scores, const MeetingQueries& queries,
            std::int64_t count, std::int64_t least_capacity, ChoiceTask task,
            const ChosenEntries& chosen, cudaStream_t stream) {
  check_queries(what, queries);
  if (count < 1 || count > most_candidates())
    throw Unsupported("CUDA " + std::string(what) + " of " + std::to_string(count) +
                      " candidates, expected 1 to " + std::to_string(most_candidates()));
  if (chosen.capacity < least_capacity)
    throw InvalidArgument("CUDA " + std::string(what) + ": room for " +
                          std::to_string(chosen.capacity) + " entries of a meeting, expected " +
                          std::to_string(least_capacity));
  if (queries.meetings == 0) return;
  task.scores = scores;
  task.group = static_cast<int>(queries.group);
  task.count = static_cast<int>(count);
  task.entries = chosen.entries;
  task.counts = chosen.counts;
  task.capacity = chosen.capacity;
  launch<Choice>(task, queries.meetings, stream);
}

void check_wanted(const char* what, std::int64_t count, std::int64_t k) {
  if (k < 1 || k > count)
    throw InvalidArgument("CUDA " + std::string(what) + ": " + std::to_string(k) + " of " +
                          std::to_string(count) + " candidates, expected 1 to all");
}

}  // namespace

std::int64_t most_candidates() {
  return std::int64_t{team_threads} * team_each * (has_clusters() ? team_blocks : 1);
}

void choose_best(const float* scores, const MeetingQueries& queries, std::int64_t count,
                 std::int64_t k, const ChosenEntries& chosen, cudaStream_t stream) {
  check_wanted("choice of the best", count, k);
  ChoiceTask task{};
  task.wanted = static_cast<int>(k);
  choose<Best>("choice of the best", scores, queries, count, std::min(count, queries.group * k),
               task, chosen, stream);
}

void choose_heaviest(const float* scores, const MeetingQueries& queries, std::int64_t count,
                     std::int64_t k, const ChosenEntries& chosen, float* shares,
                     cudaStream_t stream) {
  check_wanted("choice of the heaviest", count, k);
  ChoiceTask task{};
  task.wanted = static_cast<int>(k);
  task.shares = shares;
  choose<Heaviest>("choice of the heaviest", scores, queries, count, k, task, chosen, stream);
}

void choose_important(const float* scores, const MeetingQueries& queries, std::int64_t count,
                      const DeviceClusters& clusters, float log_threshold,
                      const ChosenEntries& chosen, cudaStream_t stream) {
  check_slots("choice of the important", 0, count, clusters.slots);
  ChoiceTask task{};
  task.clusters = clusters;
  task.log_threshold = log_threshold;
  choose<Important>("choice of the important", scores, queries, count, clusters.row_slots, task,
                    chosen, stream);
}

}  // namespace topkv::gpu
