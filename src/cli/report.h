// What a needle run prints and leaves behind for people: answers, summary, time shares.
#pragma once

#include <string>
#include <vector>

#include "src/cli/cell.h"

namespace topkv::cli {

/// Rows of cells under headings, columns as wide as their widest text. right_aligned: one flag per
/// column. Widths count characters (code points), not bytes.
std::string format_table(const std::vector<std::string>& headings,
                         const std::vector<std::vector<std::string>>& rows,
                         const std::vector<bool>& right_aligned);

/// One line per cell: what was asked, expected and answered. Cells in grid order.
std::string answers_table(const std::vector<Cell>& cells);

/// What one index made of one context length.
struct Summary {
  std::int64_t length = 0;
  std::string index;
  std::int64_t asked = 0;
  std::int64_t found = 0;
  double prefill_tokens_per_second = 0;  ///< mean over its contexts
  double index_build_seconds = 0;        ///< that the index added before the first question; mean
  double first_token_seconds = 0;        ///< prefill, index and question; mean
  std::int64_t index_bytes = 0;
  std::int64_t rows_bytes = 0;
  double rows_per_head = 0;
  double recall = 0;                    ///< below 0: not measured
  double decode_tokens_per_second = 0;  ///< of all tokens over all seconds

  double score() const {
    return asked == 0 ? 0 : static_cast<double>(found) / static_cast<double>(asked);
  }
};

/// In the order in which index and length first appear.
std::vector<Summary> summarise(const std::vector<Cell>& cells);
std::string summary_table(const std::vector<Summary>& summaries);
/// RFC 4180, with a heading line.
std::string summary_csv(const std::vector<Summary>& summaries);

/// "matmul 61 %  attention 30 %  search 0 %  other 9 %".
std::string time_shares(const ForwardTimes& times);

/// Fits in `width` characters: line breaks shown as spaces, cut with "…".
std::string one_line(const std::string& text, std::size_t width);

}  // namespace topkv::cli
