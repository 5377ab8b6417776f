// What a needle run prints and leaves behind for people: answers, summary, time shares.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "src/cli/cell.h"

namespace topkv::cli {

/// How a table gets into a width. First the columns that may be cut are cut, in this order and to 8
/// characters at the least; then the table becomes several, each with the key columns and some of
/// the others.
struct TableFit {
  std::size_t width = std::string::npos;  ///< characters of a line
  std::size_t keys = 1;                   ///< first columns, which tell a row from others
  std::vector<std::size_t> cut = {};      ///< columns that may be cut
};

/// Rows of cells under headings, columns as wide as their widest text. right_aligned: one flag per
/// column. Widths count characters (code points), not bytes.
std::string format_table(std::vector<std::string> headings,
                         std::vector<std::vector<std::string>> rows,
                         const std::vector<bool>& right_aligned, const TableFit& fit = {});

/// One line per cell: what was asked, expected and answered. Cells in grid order.
std::string answers_table(const std::vector<Cell>& cells, std::size_t width);

/// What one index made of one context length.
struct Summary {
  std::int64_t length = 0;  ///< as -c had it
  std::string index;
  std::int64_t context_tokens = 0;  ///< prefilled, of its longest context
  std::int64_t asked = 0;
  std::int64_t found = 0;
  double prefill_tokens_per_second = 0;  ///< mean over its contexts
  double index_build_seconds = 0;        ///< that the index added before the first question; mean
  double first_token_seconds = 0;        ///< prefill, index and question; mean
  std::int64_t index_bytes = 0;
  std::int64_t rows_bytes = 0;
  double rows_per_head = 0;
  std::optional<double> recall = {};                    ///< mean over the cells that measured it
  std::optional<double> decode_tokens_per_second = {};  ///< of all tokens over all seconds

  double score() const {
    return asked == 0 ? 0 : static_cast<double>(found) / static_cast<double>(asked);
  }
};

/// In the order in which index and length first appear.
std::vector<Summary> summarise(const std::vector<Cell>& cells);
std::string summary_table(const std::vector<Summary>& summaries, std::size_t width);
/// RFC 4180, with a heading line. What was not measured is empty.
std::string summary_csv(const std::vector<Summary>& summaries);

/// "matmul 61 %  attention 30 %  search 0 %  other 9 %".
std::string time_shares(const ForwardTimes& times);

}  // namespace topkv::cli
