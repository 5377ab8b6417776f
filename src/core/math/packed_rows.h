// How products with packed rows go through them on the host.
#pragma once

#include <cstdint>

namespace topkv {

/// How far ahead the codes of rows that are read side by side are fetched, in bytes: within a long
/// row, else as far on in the next rows.
constexpr std::int64_t fetch_ahead(std::int64_t row_bytes, std::int64_t rows) {
  constexpr std::int64_t enough = 4096;
  if (row_bytes > enough) return 1024;
  return (enough / (rows * row_bytes) + 1) * rows * row_bytes;
}

/// dot.operator()<rows, tokens>(r) for rows r and on, side by side, until all of them are done.
template <int tokens, class Dot>
void each_rows(std::int64_t rows, const Dot& dot) {
  constexpr int at_once = 4;  // activations of several tokens come from the second-level cache
  std::int64_t r = 0;
  for (; r + at_once <= rows; r += at_once) dot.template operator()<at_once, tokens>(r);
  for (; r < rows; ++r) dot.template operator()<1, tokens>(r);
}
/// For 1 to 4 tokens.
template <class Dot>
void each_rows(std::int64_t rows, std::int64_t tokens, const Dot& dot) {
  switch (tokens) {
    case 1:
      return each_rows<1>(rows, dot);
    case 2:
      return each_rows<2>(rows, dot);
    case 3:
      return each_rows<3>(rows, dot);
    default:
      return each_rows<4>(rows, dot);
  }
}

}  // namespace topkv
