// Choices among scores (selection.h). A block, or a cluster of blocks where candidates are many, has
// a meeting; it finds the score that as many as are wanted reach by radix: of the scores' bits the
// highest 11, then the next, then the rest, each by counting.
#include <cooperative_groups.h>

#include <climits>
#include <cmath>
#include <limits>
#include <string>

#include "gpu/kernel_parts.cuh"
#include "gpu/selection.h"
#include "gpu/selection_checks.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

constexpr int threads = 512;
constexpr int warps = threads / warp;
constexpr int most_blocks = 8;  // of a cluster, that every device with clusters grants
constexpr int digit_bits = 11;
constexpr int bins = 1 << digit_bits;
constexpr int thread_bins = bins / threads;

/// Numbers in the order of scores; what is not a number comes last.
__device__ __forceinline__ unsigned ordered(float score) {
  if (isnan(score)) return 0;
  const unsigned bits = __float_as_uint(score);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

/// What the threads and blocks of a meeting tell each other.
struct Exchange {
  int counts[bins];
  union Word {
    int number;
    float real;
  };
  // Two of each in turn, so that one barrier is enough.
  Word of_warps[2][warps];
  Word of_blocks[2][most_blocks];
  int digit, above, within;
};

/// Where a choice among all candidates ends: those that score more than `score` are in, and of those
/// that score exactly that the ones before number `end`.
struct Limit {
  unsigned score;
  int end;

  __device__ bool has(unsigned its_score, int number) const {
    return its_score > score || (its_score == score && number < end);
  }
};

/// A meeting's blocks, and this warp's candidates among `count`: [begin, end).
class Team {
 public:
  __device__ Team(Exchange& exchange, int count) : exchange_(exchange) {
#if __CUDA_ARCH__ >= 900
    const auto cluster = cooperative_groups::this_cluster();
    size_ = static_cast<int>(cluster.num_blocks());
    rank_ = static_cast<int>(cluster.block_rank());
    if (size_ > 1) cluster.sync();  // all are there to be written to
#endif
    const int of_warp = ((count - 1) / (size_ * warps) / warp + 1) * warp;
    begin_ = min((rank_ * warps + thread_ / warp) * of_warp, count);
    end_ = min(begin_ + of_warp, count);
  }
  __device__ int begin() const { return begin_; }
  __device__ int end() const { return end_; }
  __device__ bool first_thread() const { return rank_ == 0 && thread_ == 0; }

  /// For each of this thread's candidates; all lanes of a warp are there.
  template <class Use>
  __device__ void each(const Use& use) const {
#pragma unroll 4
    for (int i = begin_ + thread_ % warp; i < end_; i += warp) use(i);
  }

  /// Sums over all threads of the meeting, for each of them.
  __device__ int sum(int x) {
    const auto sum_two = [](int a, int b) { return a + b; };
    return all(x, 0, sum_two, [](Exchange::Word& word) -> int& { return word.number; });
  }
  __device__ float sum(float x) {
    const auto sum_two = [](float a, float b) { return a + b; };
    return all(x, 0.0F, sum_two, real);
  }
  __device__ float max(float x) {
    return all(x, -INFINITY, [](float a, float b) { return fmaxf(a, b); }, real);
  }

  /// The limit of the `wanted` best. score(i): ordered; it is asked again and again.
  /// REQUIRES: 0 < wanted <= count.
  template <class Score>
  __device__ Limit limit_of(int wanted, const Score& score) {
    unsigned found = 0;  // the limit's digits so far
    int bits_left = 32;
    int within = 0;
    while (bits_left > 0) {
      const int shift = ::max(0, bits_left - digit_bits);
      const unsigned digits = (1U << (bits_left - shift)) - 1;
      clear_counts();
      each([&](int i) {
        const unsigned x = score(i);
        if (bits_left == 32 || (x ^ found) >> bits_left == 0)
          atomicAdd(exchange_.counts + (x >> shift & digits), 1);
      });
      find_digit(wanted);
      found |= static_cast<unsigned>(exchange_.digit) << shift;
      wanted -= exchange_.above;
      within = exchange_.within;
      bits_left = shift;
    }
    if (within == wanted) return {found, INT_MAX};
    // Of equal ones the first: fewer than are wanted lie before `begin`.
    int begin = 0;
    int end = INT_MAX;
    while (end - begin > 1) {
      const int middle = begin + (end - begin) / 2;
      int before = 0;
      each([&](int i) { before += i < middle && score(i) == found; });
      (sum(before) >= wanted ? end : begin) = middle;
    }
    return {found, end};
  }

  /// Where what this warp has begins among what all warps of the meeting have. all: their sum.
  __device__ int place(int of_lane, int& all) {
    const int parity = parity_;
    all = sum(of_lane);  // which leaves behind the sums of warps and blocks
    int before = 0;
    for (int w = 0; w < thread_ / warp; ++w) before += exchange_.of_warps[parity][w].number;
    for (int b = 0; b < rank_; ++b) before += exchange_.of_blocks[parity][b].number;
    return before;
  }

  /// No block ends while another may read or write its memory.
  __device__ void leave() const {
#if __CUDA_ARCH__ >= 900
    if (size_ > 1) cooperative_groups::this_cluster().sync();
#endif
  }

 private:
  static __device__ float& real(Exchange::Word& word) { return word.real; }

  /// What `of_two` makes of all threads' numbers.
  template <class T, class OfTwo, class Member>
  __device__ T all(T x, T nothing, const OfTwo& of_two, const Member& member) {
    const auto of_warp = [&](T mine) {
#pragma unroll
      for (int step = warp / 2; step > 0; step /= 2)
        mine = of_two(mine, __shfl_xor_sync(all_lanes, mine, step));
      return mine;
    };
    const int lane = thread_ % warp;
    auto& of_warps = exchange_.of_warps[parity_];
    x = of_warp(x);
    if (lane == 0) member(of_warps[thread_ / warp]) = x;
    __syncthreads();
    x = of_warp(lane < warps ? member(of_warps[lane]) : nothing);
#if __CUDA_ARCH__ >= 900
    if (size_ > 1) {
      const auto cluster = cooperative_groups::this_cluster();
      if (thread_ < size_)
        member(cluster.map_shared_rank(&exchange_, static_cast<unsigned>(thread_))
                   ->of_blocks[parity_][rank_]) = x;
      cluster.sync();
      x = nothing;
      for (int b = 0; b < size_; ++b) x = of_two(x, member(exchange_.of_blocks[parity_][b]));
    }
#endif
    parity_ ^= 1;
    return x;
  }

  __device__ void clear_counts() {
    reinterpret_cast<int4*>(exchange_.counts)[thread_] = int4{0, 0, 0, 0};
    __syncthreads();
  }

  /// Finds the digit of the `wanted`th best among those counted, from the largest on: `digit`, how
  /// many have a larger one, and how many have it.
  __device__ void find_digit(int wanted) {
    static_assert(thread_bins == 4);
    const int four = threads - 1 - thread_;  // the largest digits first
    int4 mine{};
#if __CUDA_ARCH__ >= 900
    if (size_ > 1) {
      const auto cluster = cooperative_groups::this_cluster();
      cluster.sync();
      for (int b = 0; b < size_; ++b) {
        const int4 its = reinterpret_cast<const int4*>(
            cluster.map_shared_rank(exchange_.counts, static_cast<unsigned>(b)))[four];
        mine = {mine.x + its.x, mine.y + its.y, mine.z + its.z, mine.w + its.w};
      }
    } else
#endif
    {
      __syncthreads();
      mine = reinterpret_cast<const int4*>(exchange_.counts)[four];
    }
    const int count = mine.x + mine.y + mine.z + mine.w;
    const int lane = thread_ % warp;
    int upto = count;
#pragma unroll
    for (int step = 1; step < warp; step *= 2) {
      const int other = __shfl_up_sync(all_lanes, upto, step);
      if (lane >= step) upto += other;
    }
    auto& of_warps = exchange_.of_warps[parity_];
    if (lane == warp - 1) of_warps[thread_ / warp].number = upto;
    __syncthreads();
    int before = lane < thread_ / warp ? of_warps[lane].number : 0;
    before = __reduce_add_sync(all_lanes, before) + upto - count;
    if (before < wanted && before + count >= wanted) {
      const int each[thread_bins] = {mine.w, mine.z, mine.y, mine.x};
#pragma unroll
      for (int i = 0; i < thread_bins; ++i) {
        if (before < wanted && before + each[i] >= wanted) {
          exchange_.digit = four * thread_bins + thread_bins - 1 - i;
          exchange_.above = before;
          exchange_.within = each[i];
        }
        before += each[i];
      }
    }
    parity_ ^= 1;
    leave();  // all have read the counts
    __syncthreads();
  }

  Exchange& exchange_;
  const int thread_ = static_cast<int>(threadIdx.x);
  int rank_ = 0;
  int size_ = 1;
  int begin_, end_;
  int parity_ = 0;
};

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

/// One meeting's.
struct MeetingChoice {
  const ChoiceTask& task;
  std::int64_t meeting;
  const float* scores = task.scores + meeting * task.group * task.count;

  __device__ float score(int g, int i) const {
    return scores[static_cast<std::int64_t>(g) * task.count + i];
  }

  /// Writes the numbers of those chosen, ascending.
  template <class IsChosen>
  __device__ void write(Team& team, const IsChosen& is_chosen) const {
    int mine = 0;
    team.each([&](int i) { mine += is_chosen(i); });
    int all = 0;
    std::int64_t place = meeting * task.capacity + team.place(mine, all);
    const int lane = static_cast<int>(threadIdx.x) % warp;
    for (int first = team.begin(); first < team.end(); first += warp) {
      const int i = first + lane;
      const bool kept = i < team.end() && is_chosen(i);
      const unsigned of_warp = __ballot_sync(all_lanes, kept);
      if (kept) task.entries[place + __popc(of_warp & ((1U << lane) - 1))] = i;
      place += __popc(of_warp);
    }
    if (team.first_thread()) task.counts[meeting] = all;
  }

  /// Writes the rows of the clusters chosen.
  template <class IsChosen>
  __device__ void write_rows(Team& team, const IsChosen& is_chosen) const {
    const int* begin = task.clusters.begin + meeting * (task.clusters.slots + 1);
    const int* rows = task.clusters.rows + meeting * task.clusters.row_slots;
    const auto size = [&](int i) { return is_chosen(i) ? begin[i + 1] - begin[i] : 0; };
    int mine = 0;
    team.each([&](int i) { mine += size(i); });
    int all = 0;
    std::int64_t place = meeting * task.capacity + team.place(mine, all);
    const int lane = static_cast<int>(threadIdx.x) % warp;
    for (int first = team.begin(); first < team.end(); first += warp) {
      const int i = first + lane;
      const int its_size = i < team.end() ? size(i) : 0;
      const int its_first = its_size > 0 ? begin[i] : 0;
      int upto = its_size;
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
        const int count = __shfl_sync(all_lanes, its_size, cluster);
        const int from = __shfl_sync(all_lanes, its_first, cluster);
        if (row < of_warp) task.entries[place + row] = rows[from + row - (end - count)];
      }
      place += of_warp;
    }
    if (team.first_thread()) task.counts[meeting] = all;
  }

  /// The natural log of the sum of exp(score), with a factor for each candidate.
  template <class Factor>
  __device__ float log_sum(Team& team, int g, const Factor& factor) const {
    float most = -INFINITY;
    team.each([&](int i) { most = fmaxf(most, score(g, i)); });
    most = team.max(most);
    if (most == -INFINITY) return most;
    float sum = 0;
    team.each([&](int i) { sum += factor(i) * __expf(score(g, i) - most); });
    return most + logf(team.sum(sum));
  }
};

__global__ void __launch_bounds__(threads) best_kernel(const ChoiceTask task) {
  __shared__ Exchange exchange;
  __shared__ Limit limits[most_group];
  await_previous();
  Team team(exchange, task.count);
  const MeetingChoice choice{task, blockIdx.y};
  for (int g = 0; g < task.group; ++g) {
    const Limit limit =
        team.limit_of(task.wanted, [&](int i) { return ordered(choice.score(g, i)); });
    if (threadIdx.x == 0) limits[g] = limit;
  }
  __syncthreads();
  choice.write(team, [&](int i) {
    bool kept = false;
    for (int g = 0; g < task.group; ++g)
      kept = kept || limits[g].has(ordered(choice.score(g, i)), i);
    return kept;
  });
  team.leave();
}

__global__ void __launch_bounds__(threads) heaviest_kernel(const ChoiceTask task) {
  __shared__ Exchange exchange;
  __shared__ float logs[most_group];
  await_previous();
  Team team(exchange, task.count);
  const MeetingChoice choice{task, blockIdx.y};
  for (int g = 0; g < task.group; ++g) {
    const float log = choice.log_sum(team, g, [](int) { return 1.0F; });
    if (threadIdx.x == 0) logs[g] = log;
  }
  __syncthreads();
  const auto weight = [&](int g, int i) { return __expf(choice.score(g, i) - logs[g]); };
  const auto rank = [&](int i) {
    // Of one head: its scores, which have the order of its weights.
    if (task.group == 1) return ordered(choice.score(0, i));
    float sum = 0;
    for (int g = 0; g < task.group; ++g) sum += weight(g, i);
    return ordered(sum);
  };
  const Limit limit = team.limit_of(task.wanted, rank);
  for (int g = 0; g < task.group; ++g) {
    float share = 0;
    team.each([&](int i) {
      if (limit.has(rank(i), i)) share += weight(g, i);
    });
    share = team.sum(share);
    if (team.first_thread()) task.shares[choice.meeting * task.group + g] = share;
  }
  choice.write(team, [&](int i) { return limit.has(rank(i), i); });
  team.leave();
}

__global__ void __launch_bounds__(threads) important_kernel(const ChoiceTask task) {
  __shared__ Exchange exchange;
  __shared__ float least[most_group];
  await_previous();
  Team team(exchange, task.count);
  const MeetingChoice choice{task, blockIdx.y};
  const int* begin = task.clusters.begin + choice.meeting * (task.clusters.slots + 1);
  const auto members = [&](int i) { return static_cast<float>(begin[i + 1] - begin[i]); };
  for (int g = 0; g < task.group; ++g) {
    const float log = choice.log_sum(team, g, members);
    if (threadIdx.x == 0) least[g] = task.log_threshold + log;
  }
  __syncthreads();
  choice.write_rows(team, [&](int i) {
    bool kept = false;
    for (int g = 0; g < task.group; ++g) kept = kept || choice.score(g, i) >= least[g];
    return kept;
  });
  team.leave();
}

struct DeviceFacts {
  int processors = 0;
  bool clusters = false;
};
DeviceFacts device_facts() {
  int device = 0;
  int major = 0;
  DeviceFacts facts;
  TOPKV_CUDA(cudaGetDevice(&device));
  TOPKV_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  TOPKV_CUDA(
      cudaDeviceGetAttribute(&facts.processors, cudaDevAttrMultiProcessorCount, device));
  facts.clusters = major >= 9;
  return facts;
}

void choose(const char* what, void (*kernel)(ChoiceTask), const float* scores,
            const MeetingQueries& queries, std::int64_t count, std::int64_t least_capacity,
            ChoiceTask task, const ChosenEntries& chosen, cudaStream_t stream) {
  check_meetings(what, queries);
  if (count < 1 || count > std::numeric_limits<int>::max() / 2)
    throw Unsupported("CUDA " + std::string(what) + " of " + std::to_string(count) +
                      " candidates, expected 1 to 2^30");
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
  const DeviceFacts device = device_facts();
  unsigned blocks = 1;  // as many as the device has room for, of at least four candidates a thread
  while (device.clusters && blocks < most_blocks && count > 4 * threads * blocks &&
         2 * blocks * queries.meetings <= 4 * device.processors)
    blocks *= 2;
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = blocks;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks, static_cast<unsigned>(queries.meetings));
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = device.clusters ? 2 : 0;
  TOPKV_CUDA(cudaLaunchKernelEx(&config, kernel, task));
}

void check_wanted(const char* what, std::int64_t count, std::int64_t k) {
  if (k < 1 || k > count)
    throw InvalidArgument("CUDA " + std::string(what) + ": " + std::to_string(k) + " of " +
                          std::to_string(count) + " candidates, expected 1 to all");
}

}  // namespace

void choose_best(const float* scores, const MeetingQueries& queries, std::int64_t count,
                 std::int64_t k, const ChosenEntries& chosen, cudaStream_t stream) {
  check_wanted("choice of the best", count, k);
  ChoiceTask task{};
  task.wanted = static_cast<int>(k);
  choose("choice of the best", best_kernel, scores, queries, count,
         std::min(count, queries.group * k), task, chosen, stream);
}

void choose_heaviest(const float* scores, const MeetingQueries& queries, std::int64_t count,
                     std::int64_t k, const ChosenEntries& chosen, float* shares,
                     cudaStream_t stream) {
  check_wanted("choice of the heaviest", count, k);
  ChoiceTask task{};
  task.wanted = static_cast<int>(k);
  task.shares = shares;
  choose("choice of the heaviest", heaviest_kernel, scores, queries, count, k, task, chosen,
         stream);
}

void choose_important(const float* scores, const MeetingQueries& queries, std::int64_t count,
                      const DeviceClusters& clusters, float log_threshold,
                      const ChosenEntries& chosen, cudaStream_t stream) {
  if (count > clusters.slots)
    throw InvalidArgument("CUDA choice of the important: " + std::to_string(count) +
                          " clusters in " + std::to_string(clusters.slots) + " slots");
  ChoiceTask task{};
  task.clusters = clusters;
  task.log_threshold = log_threshold;
  choose("choice of the important", important_kernel, scores, queries, count, clusters.row_slots,
         task, chosen, stream);
}

}  // namespace topkv::gpu
