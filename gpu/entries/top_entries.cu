#include <algorithm>
#include <cmath>
#include <string>

#include "gpu/entries/top_entries.h"
#include "gpu/entries/top_entries_choice.cuh"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

/// Those that are among the best of any head.
struct Best {
  int wanted;

  template <int each>
  __device__ void choose(const HeadStepChoice<each>& choice) const {
    Mask<each> chosen = 0;
    for (int g = 0; g < choice.task.group; ++g) {
      float x[each];
      choice.load(g, x);
      const Range range = choice.team.range_of(x);
      chosen |= choice.within(choice.team.limit_of(wanted, x, range), x);
    }
    choice.write(chosen);
  }
};

/// Those that have most of the heads' softmax.
struct Heaviest {
  int wanted;
  float* shares;  // [head_steps, group]

  template <int each>
  __device__ void choose(const HeadStepChoice<each>& choice) const {
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
    const Mask<each> chosen = task.group > 1
                                  ? choice.within(choice.team.limit_of(wanted, sums, range), sums)
                                  : choice.within(choice.team.limit_of(wanted, x, range), x);
    for (int g = 0; g < task.group; ++g) {
      if (task.group > 1) choice.load(g, x);
      float share = 0;
#pragma unroll
      for (int i = 0; i < each; ++i)
        if (((chosen >> i) & 1U) != 0) share += weight(x[i], logs[g]);
      share = choice.team.sum(share);
      if (choice.team.first_thread())
        shares[choice.head_step * task.group + g] = fminf(share, 1.0F);
    }
    choice.write(chosen);
  }
};

void check_wanted(const char* what, std::int64_t count, std::int64_t k) {
  if (k < 1 || k > count)
    throw InvalidArgument("CUDA " + std::string(what) + ": " + std::to_string(k) + " of " +
                          std::to_string(count) + " candidates, expected 1 to all");
}

}  // namespace

std::int64_t most_candidates() {
  return std::int64_t{team_threads} * team_each * (choice_has_clusters() ? team_blocks : 1);
}

void choose_best(const float* scores, const HeadStepQueries& queries, std::int64_t count,
                 std::int64_t k, const ChosenEntries& chosen, cudaStream_t stream) {
  check_wanted("choice of the best", count, k);
  choose("choice of the best", scores, queries, count, std::min(count, queries.group * k),
         Best{static_cast<int>(k)}, chosen, stream);
}

void choose_heaviest(const float* scores, const HeadStepQueries& queries, std::int64_t count,
                     std::int64_t k, const ChosenEntries& chosen, float* shares,
                     cudaStream_t stream) {
  check_wanted("choice of the heaviest", count, k);
  choose("choice of the heaviest", scores, queries, count, k, Heaviest{static_cast<int>(k), shares},
         chosen, stream);
}

}  // namespace topkv::gpu
