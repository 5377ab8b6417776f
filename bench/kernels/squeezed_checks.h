// Checks of the queries of squeezed_attention.h.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/entries/entry_checks.h"
#include "topkv/error.h"

namespace topkv::gpu {

inline void check_squeezed(const std::string& what, std::int64_t tokens, std::int64_t head_steps,
                           std::int64_t group, std::int64_t head_dim, float scale) {
  check_queries(what, {nullptr, head_steps, group, head_dim, scale});
  if (head_steps * group > 65535)
    throw Unsupported("CUDA " + what + ": " + std::to_string(head_steps * group) +
                      " heads, expected at most 65535");
  if (tokens < 1 || tokens > (std::int64_t{1} << 20))
    throw InvalidArgument("CUDA " + what + ": " + std::to_string(tokens) +
                          " tokens, expected 1 to 2^20");
}

}  // namespace topkv::gpu
