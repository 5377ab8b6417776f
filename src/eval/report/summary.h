// What became of the cells of a needle grid, per context length and index.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/eval/run/eval_result.h"

namespace topkv {

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
std::vector<Summary> summarise(const std::vector<EvalResult>& cells);

/// RFC 4180, with a heading line. What was not measured is empty.
std::string summary_csv(const std::vector<Summary>& summaries);

}  // namespace topkv
