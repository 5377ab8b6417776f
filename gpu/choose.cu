// Choices among scores (selection.h). A block, or a cluster of blocks where candidates are many,
// has a meeting. It counts the scores in equal parts of their range, and ranks those of the part
// where the choice ends one by one; where these are too many, it goes by the scores' bits, the
// highest 11 first.
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
constexpr int most_each = 64;   // candidates of a thread
constexpr int digit_bits = 11;
constexpr int bins = 1 << digit_bits;
constexpr int thread_bins = bins / threads;

/// Numbers in the order of scores; what is not a number comes last.
__device__ __forceinline__ unsigned ordered(float score) {
  if (isnan(score)) return 0;
  const unsigned bits = __float_as_uint(score);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

/// Where a choice among all candidates ends: those that score more than `score` are in, and of
/// those that score exactly that the ones before number `end`.
struct Limit {
  unsigned score;
  int end;

  __device__ bool has(unsigned its_score, int number) const {
    return its_score > score || (its_score == score && number < end);
  }
};

struct Candidate {
  unsigned score;  // ordered
  int number;
};

/// What the threads and blocks of a meeting tell each other.
struct Exchange {
  union {
    int counts[bins];
    Candidate listed[bins / 2];
  };
  int listed_count;
  union Word {
    int number;
    float real;
  };
  // Two of each in turn, so that one barrier is enough.
  Word of_warps[2][warps];
  Word of_blocks[2][most_blocks];
  int digit, above, within;
  Limit limit;
};

struct Range {
  float least, most;
};

/// A meeting's blocks. Candidates among `count` are spread over warps, a row of them for each; of a
/// thread they are first + 32 i for i below `each`, few enough to be kept in registers.
template <int each>
class Team {
 public:
  __device__ Team(Exchange& exchange, int count) : exchange_(exchange) {
#if __CUDA_ARCH__ >= 900
    const auto cluster = cooperative_groups::this_cluster();
    size_ = static_cast<int>(cluster.num_blocks());
    rank_ = static_cast<int>(cluster.block_rank());
    if (size_ > 1) cluster.sync();  // all are there to be written to
#endif
    first_ = (rank_ * warps + thread_ / warp) * each * warp + thread_ % warp;
    count_ = count;
  }
  __device__ int number(int i) const { return first_ + i * warp; }
  __device__ bool there(int i) const { return number(i) < count_; }
  __device__ bool first_thread() const { return rank_ == 0 && thread_ == 0; }

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
    return all(
        x, -INFINITY, [](float a, float b) { return fmaxf(a, b); }, real);
  }

  __device__ Range range_of(const float (&x)[each]) {
    float least = INFINITY;
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < each; ++i) {  // what is not a number is passed over
      if (!there(i)) continue;
      least = fminf(least, x[i]);
      most = fmaxf(most, x[i]);
    }
    return {-max(-least), max(most)};
  }

  /// The limit of the `wanted` best. REQUIRES: 0 < wanted <= count.
  __device__ Limit limit_of(int wanted, const float (&x)[each], const Range& range) {
    const float rate = static_cast<float>(bins - 1) / (range.most - range.least);
    if (!(rate > 0 && rate < INFINITY)) return limit_by_bits(wanted, x);
    const auto part = [&](float score) {  // ascends with it; of what is not a number: the first
      return static_cast<int>(
          fminf(fmaxf((score - range.least) * rate, 0.0F), static_cast<float>(bins - 1)));
    };
    clear_counts();
#pragma unroll
    for (int i = 0; i < each; ++i)
      if (there(i)) atomicAdd(exchange_.counts + part(x[i]), 1);
    find_digit(wanted);
    const int where = exchange_.digit;
    const int within = exchange_.within;
    const int rank = wanted - exchange_.above;
    if (within > bins / 2) return limit_by_bits(wanted, x);
    Exchange* const list = begin_list();
#pragma unroll
    for (int i = 0; i < each; ++i) {
      if (there(i) && part(x[i]) == where)
        list->listed[atomicAdd(&list->listed_count, 1)] = {ordered(x[i]), number(i)};
    }
    meet();
    return listed_limit(within, rank);
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
  /// The same, whatever the scores are.
  __device__ __noinline__ Limit limit_by_bits(int wanted, const float (&x)[each]) {
    unsigned found = 0;  // the limit's digits so far
    int bits_left = 32;
    int within = 0;
    while (bits_left > 0) {
      const int shift = ::max(0, bits_left - digit_bits);
      const unsigned digits = (1U << (bits_left - shift)) - 1;
      clear_counts();
#pragma unroll 1
      for (int i = 0; i < each; ++i) {
        const unsigned score = ordered(x[i]);
        if (there(i) && (bits_left == 32 || (score ^ found) >> bits_left == 0))
          atomicAdd(exchange_.counts + (score >> shift & digits), 1);
      }
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
#pragma unroll 1
      for (int i = 0; i < each; ++i)
        before += there(i) && number(i) < middle && ordered(x[i]) == found;
      (sum(before) >= wanted ? end : begin) = middle;
    }
    return {found, end};
  }

  /// What the first block lists, empty.
  __device__ Exchange* begin_list() {
    Exchange* list = &exchange_;
#if __CUDA_ARCH__ >= 900
    if (size_ > 1) list = cooperative_groups::this_cluster().map_shared_rank(&exchange_, 0);
#endif
    if (first_thread()) exchange_.listed_count = 0;
    meet();
    return list;
  }

  /// The limit that leaves in `wanted` of those listed.
  __device__ Limit listed_limit(int count, int wanted) {
    if (rank_ == 0) {
      for (int i = thread_; i < count; i += threads) {
        const Candidate mine = exchange_.listed[i];
        int rank = 0;
        for (int j = 0; j < count; ++j) {
          const Candidate other = exchange_.listed[j];
          rank +=
              other.score > mine.score || (other.score == mine.score && other.number < mine.number);
        }
        if (rank != wanted - 1) continue;
        const Limit limit{mine.score, mine.number + 1};
        exchange_.limit = limit;
#if __CUDA_ARCH__ >= 900
        for (int b = 1; b < size_; ++b)
          cooperative_groups::this_cluster()
              .map_shared_rank(&exchange_, static_cast<unsigned>(b))
              ->limit = limit;
#endif
      }
    }
    meet();
    return exchange_.limit;
  }

  /// A barrier of all threads of the meeting.
  __device__ void meet() const {
#if __CUDA_ARCH__ >= 900
    if (size_ > 1) return cooperative_groups::this_cluster().sync();
#endif
    __syncthreads();
  }

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
      const int four_counts[thread_bins] = {mine.w, mine.z, mine.y, mine.x};
#pragma unroll
      for (int i = 0; i < thread_bins; ++i) {
        if (before < wanted && before + four_counts[i] >= wanted) {
          exchange_.digit = four * thread_bins + thread_bins - 1 - i;
          exchange_.above = before;
          exchange_.within = four_counts[i];
        }
        before += four_counts[i];
      }
    }
    parity_ ^= 1;
    meet();  // all have read the counts
  }

  Exchange& exchange_;
  const int thread_ = static_cast<int>(threadIdx.x);
  int rank_ = 0;
  int size_ = 1;
  int first_, count_;
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

/// exp(score - log), 0 of what is not a number. An infinite score has all the weight.
__device__ __forceinline__ float weight(float score, float log) {
  if (score == log) return 1.0F;
  return isnan(score) ? 0.0F : __expf(score - log);
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
    float sums[each] = {};
    Range range{};
    for (int g = 0; g < task.group; ++g) {
      choice.load(g, x);
      range = choice.team.range_of(x);
      logs[g] = choice.log_sum(x, range.most, [](int) { return 1.0F; });
      if (task.group == 1) break;
#pragma unroll
      for (int i = 0; i < each; ++i) sums[i] += weight(x[i], logs[g]);
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
      const float least = task.log_threshold + choice.log_sum(x, range.most, members);
#pragma unroll
      for (int i = 0; i < each; ++i)
        chosen |= Mask<each>{choice.team.there(i) && x[i] >= least} << i;
    }
    choice.write_rows(chosen);
  }
};

template <int each, class Choice>
__global__ void __launch_bounds__(threads) choice_kernel(const ChoiceTask task) {
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
  const auto blocks_of = [&](int each) { return (task.count - 1) / (threads * each) + 1; };
  const int most = has_clusters() ? most_blocks : 1;
  int each = 4;
  while (each < most_each &&
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
  config.blockDim = dim3(threads);
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
      return run(choice_kernel<most_each, Choice>);
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
  return std::int64_t{threads} * most_each * (has_clusters() ? most_blocks : 1);
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
