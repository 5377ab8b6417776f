// A few keys out of all, from which an exact search guesses a score that about the k best exceed,
// so that it need not keep the others. The guess decides about speed only: a search that finds too
// few keys above it searches again without.
//
// One run of 4 keys is taken of every 128, at a place that a hash of the run's number chooses: runs
// for the sake of memory, a hash so that keys which repeat do not mislead.
#pragma once

#include <cstdint>

#include "topkv/types.h"

namespace topkv::sample {

inline constexpr std::int64_t run = 4;
inline constexpr std::int64_t spacing = 128;

/// The position of sampled key i; ascending.
inline std::int64_t position(std::int64_t i) {
  constexpr int place_bits = 5;
  static_assert(spacing == run << place_bits);
  const auto group = static_cast<std::uint64_t>(i / run);
  const std::uint64_t place = (group * 0x9E3779B97F4A7C15U) >> (64 - place_bits);
  return i / run * spacing + static_cast<std::int64_t>(place) * run + i % run;
}

/// The sampled keys within a range of positions, less those of its incomplete ends.
inline PositionRange within(PositionRange range) {
  const std::int64_t begin = (range.begin + spacing - 1) / spacing;
  const std::int64_t end = range.end / spacing;
  return {begin * run, (end > begin ? end : begin) * run};
}

/// Which best score of `size` sampled keys is to be the threshold for the k best of all; 0 when
/// the sample is too small to tell. About k * run / spacing of the sample are among the k best;
/// twice as many and 16 more are exceeded by chance only when keys that score high come in runs as
/// long as the sample's.
inline std::int64_t rank_for(std::int64_t k, std::int64_t size) {
  const std::int64_t rank = 2 * k * run / spacing + 16;
  return size >= 512 && 2 * rank <= size ? rank : 0;
}

}  // namespace topkv::sample
