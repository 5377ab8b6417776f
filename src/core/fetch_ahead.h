// How far ahead the codes of packed rows are fetched that are read side by side.
#pragma once

#include <cstdint>

namespace topkv {

/// In bytes: within a long row, else as far on in the next rows.
constexpr std::int64_t fetch_ahead(std::int64_t row_bytes, std::int64_t rows) {
  constexpr std::int64_t enough = 4096;
  if (row_bytes > enough) return 1024;
  return (enough / (rows * row_bytes) + 1) * rows * row_bytes;
}

}  // namespace topkv
