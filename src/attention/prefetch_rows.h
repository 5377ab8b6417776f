// Rows on their way from memory before they are read.
#pragma once

#include <cstdint>

#include "topkv/view.h"

namespace topkv {

/// Rows are asked for this many rows before they are scored: a thread works on some while memory
/// brings others.
inline constexpr std::int64_t rows_ahead = 48;

/// Asks for K and V of a row, to the second-level cache: it can wait for more lines at once than
/// the first. (Inlined at all costs: GCC drops calls of functions that do nothing but prefetch.)
[[gnu::always_inline]] inline void prefetch_row(const RowsView& rows, std::int64_t position) {
  constexpr std::int64_t line = 64;
  constexpr int second_level = 2;
  for (const KeyView* half : {&rows.keys, &rows.values}) {
    const std::byte* from = half->key(position);
    const std::int64_t bytes = half->stride_bytes;
    for (std::int64_t at = 0; at < bytes; at += line)
      __builtin_prefetch(from + at, 0, second_level);
    __builtin_prefetch(from + bytes - 1, 0, second_level);  // it may end in one line more
  }
}

}  // namespace topkv
