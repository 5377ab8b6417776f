// Rows on their way from memory before they are read.
#pragma once

#include <cstdint>

#include "topkv/view.h"

namespace topkv {

/// One K or V.
inline void prefetch_half_row(const std::byte* half, std::int64_t bytes) {
  constexpr std::int64_t line = 64;
  for (std::int64_t at = 0; at < bytes; at += line) __builtin_prefetch(half + at);
}

}  // namespace topkv
