// Checks of the arguments of kernels of gpu/entries/.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/entries/head_step_queries.h"
#include "topkv/error.h"

namespace topkv::gpu {

/// The most query heads of a KV head.
inline constexpr std::int64_t most_group = 16;

/// The number of thread blocks for `items` items, with `per_block` items each. REQUIRES: items > 0.
inline unsigned all_blocks(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>((items - 1) / per_block + 1);
}

/// Throws Unsupported unless the kernels have this head dim. what: the operation, for the message.
inline void check_head_dim(const std::string& what, std::int64_t head_dim) {
  if (head_dim != 64 && head_dim != 128)
    throw Unsupported("CUDA " + what + ": head_dim is " + std::to_string(head_dim) +
                      ", expected 64 or 128");
}

/// Throws Unsupported unless a launch can have this many head steps.
inline void check_head_steps(const std::string& what, std::int64_t head_steps) {
  if (head_steps < 0 || head_steps > 65535)
    throw Unsupported("CUDA " + what + ": " + std::to_string(head_steps) +
                      " head steps, expected at most 65535");
}

/// Throws InvalidArgument unless numbers `first` to `count` lie in `slots` slots.
inline void check_slots(const std::string& what, std::int64_t first, std::int64_t count,
                        std::int64_t slots) {
  if (first < 0 || count > slots || slots > (std::int64_t{1} << 30))
    throw InvalidArgument("CUDA " + what + ": numbers " + std::to_string(first) + " to " +
                          std::to_string(count) + " in " + std::to_string(slots) +
                          " slots, expected 0 or more, as many slots, and at most 2^30 of these");
}

/// Throws Unsupported or InvalidArgument unless the kernels support these queries.
inline void check_queries(const std::string& what, const HeadStepQueries& queries) {
  check_head_dim(what, queries.head_dim);
  check_head_steps(what, queries.head_steps);
  if (queries.group < 1 || queries.group > most_group)
    throw Unsupported("CUDA " + what + ": groups of " + std::to_string(queries.group) +
                      " query heads, expected 1 to " + std::to_string(most_group));
  if (!(queries.scale > 0))
    throw InvalidArgument("CUDA " + what + ": scale is " + std::to_string(queries.scale) +
                          ", expected more than 0");
}

}  // namespace topkv::gpu
