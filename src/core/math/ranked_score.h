// The n-th largest of some scores, without their order: what a threshold is taken from. Compiled
// for every x86 level and chosen at run time (Highway).
#pragma once

#include <cstdint>
#include <vector>

namespace topkv {

/// How many scores are `least` or more.
std::int64_t count_from(const float* scores, std::int64_t count, float least);

/// The rank-th largest score; the largest has rank 1. -inf stands for none. room: overwritten.
/// REQUIRES: 1 <= rank <= the number of scores above -inf; none is NaN.
float ranked_score(const float* scores, std::int64_t count, std::int64_t rank,
                   std::vector<float>& room);

}  // namespace topkv
