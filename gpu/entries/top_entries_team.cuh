// The threads that choose among the scores of a head step (top_entries.h): a block, or a cluster of
// blocks if there are many candidates. They count the scores in equal parts of their range, and
// rank the scores of the part in which the choice ends one by one. If that part has too many
// scores, they count by the bits of the scores, the highest 11 first. Only for .cu files.
#pragma once

#include <cooperative_groups.h>

#include <climits>
#include <cmath>

#include "gpu/runtime/kernel_parts.cuh"

namespace topkv::gpu {

inline constexpr int team_threads = 512;  // threads of a block
inline constexpr int team_blocks =
    8;  // the most blocks of a cluster; every device with clusters can run them
inline constexpr int team_each = 64;  // candidates of a thread

/// Maps scores to integers in the same order. NaN comes last.
__device__ __forceinline__ unsigned ordered(float score) {
  if (isnan(score)) return 0;
  const unsigned bits = __float_as_uint(score);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

/// The end of a choice. Candidates that score more than `score` are chosen, and candidates that
/// score exactly `score` if their number is below `end`.
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

/// The shared memory of a block, which the blocks of a head step read and write.
struct Exchange {
  static constexpr int warps = team_threads / warp;
  static constexpr int digit_bits = 11;
  static constexpr int bins = 1 << digit_bits;

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
  Word of_blocks[2][team_blocks];
  int digit, above, within;
  Limit limit;
};

struct Range {
  float least, most;
};

/// The blocks of a head step. The `count` candidates are spread over the warps, consecutive ones
/// for each warp. A thread has the candidates first + 32 i for i < each, and keeps their scores in
/// registers.
template <int each>
class Team {
  static constexpr int threads = team_threads;
  static constexpr int warps = Exchange::warps;
  static constexpr int digit_bits = Exchange::digit_bits;
  static constexpr int bins = Exchange::bins;
  static constexpr int thread_bins = bins / threads;

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

  /// Returns the sum over all threads of the head step in every thread.
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

  /// Returns the limit of the `wanted` best candidates. REQUIRES: 0 < wanted <= count.
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
    barrier();
    return listed_limit(within, rank);
  }

  /// Returns the sum of of_lane over all earlier warps of the head step. all: receives the sum over
  /// all warps.
  __device__ int place(int of_lane, int& all) {
    const int parity = parity_;
    all = sum(of_lane);  // which leaves behind the sums of warps and blocks
    int before = 0;
    for (int w = 0; w < thread_ / warp; ++w) before += exchange_.of_warps[parity][w].number;
    for (int b = 0; b < rank_; ++b) before += exchange_.of_blocks[parity][b].number;
    return before;
  }

  /// Waits for all blocks, because another block may still access this block's memory.
  __device__ void leave() const {
#if __CUDA_ARCH__ >= 900
    if (size_ > 1) cooperative_groups::this_cluster().sync();
#endif
  }

 private:
  /// Returns the limit of the `wanted` best candidates, for any scores.
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

  /// Empties the list of the first block, and returns it.
  __device__ Exchange* begin_list() {
    Exchange* list = &exchange_;
#if __CUDA_ARCH__ >= 900
    if (size_ > 1) list = cooperative_groups::this_cluster().map_shared_rank(&exchange_, 0);
#endif
    if (first_thread()) exchange_.listed_count = 0;
    barrier();
    return list;
  }

  /// Returns the limit that keeps `wanted` of the listed candidates.
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
    barrier();
    return exchange_.limit;
  }

  /// A barrier of all threads of the head step.
  __device__ void barrier() const {
#if __CUDA_ARCH__ >= 900
    if (size_ > 1) return cooperative_groups::this_cluster().sync();
#endif
    __syncthreads();
  }

  static __device__ float& real(Exchange::Word& word) { return word.real; }

  /// Reduces x over all threads with of_two. nothing: the neutral element.
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

  /// Finds the digit of the `wanted`th best counted score. Writes `digit`, the number of scores
  /// with a larger digit to `above`, and the number of scores with this digit to `within`.
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
    barrier();  // all have read the counts
  }

  Exchange& exchange_;
  const int thread_ = static_cast<int>(threadIdx.x);
  int rank_ = 0;
  int size_ = 1;
  int first_, count_;
  int parity_ = 0;
};

}  // namespace topkv::gpu
