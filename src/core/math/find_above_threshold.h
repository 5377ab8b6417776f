// Which scores of a row exceed a threshold: what a scan for the largest scores asks of every tile,
// where next to none do. Compiled for every x86 level and chosen at run time (Highway).
#pragma once

#include <cstdint>

namespace topkv {

/// Writes the i with scores[i] > threshold to found, ascending, and returns how many there are.
/// A score that is NaN exceeds nothing. count: at most 2^31 - 1; found: room for count.
std::int64_t find_above(const float* scores, std::int64_t count, float threshold,
                        std::int32_t* found);

}  // namespace topkv
