// Rows on their way from memory before they are read.
#pragma once

#include <cstdint>
#include <span>

#include "topkv/view.h"

namespace topkv {

/// Rows lie anywhere in memory: asks for all of them at once. A few dozen stay near.
inline void prefetch_rows(const RowsView& rows, std::span<const std::int64_t> positions) {
  constexpr std::int64_t line = 64;
  const std::int64_t bytes = rows.dim * bytes_of(rows.dtype);
  for (const std::int64_t position : positions) {
    for (std::int64_t at = 0; at < bytes; at += line) {
      __builtin_prefetch(rows.key(position) + at);
      __builtin_prefetch(rows.value(position) + at);
    }
  }
}

}  // namespace topkv
