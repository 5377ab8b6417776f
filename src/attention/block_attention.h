// Exact attention of consecutive tokens over rows that lie in one array: prefill, and a session's
// window and sinks.
#pragma once

#include <cstdint>
#include <span>

#include "src/attention/query_view.h"
#include "topkv/attention.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

/// What a token at position p may attend: positions x <= p that are among the first `sinks` or
/// the last `window` (x > p - window).
struct CausalWindow {
  std::int64_t window = 0;  ///< 0: all earlier tokens
  std::int64_t sinks = 0;

  /// First position of the window of a token at p.
  std::int64_t begin(std::int64_t p) const {
    return window == 0 || p < window ? 0 : p - window + 1;
  }
};

/// Rows of consecutive positions: row i is position first + i.
struct RowSpan {
  RowsView rows;
  std::int64_t first = 0;

  std::int64_t end() const { return first + rows.count(); }
};

/// Partials of the queries over those rows of each KV head's span that they may attend.
/// spans: one for each KV head. out: heads = [tokens, q_heads], overwritten. shape: gives the scale
/// and the cap of scores.
/// Split over threads by KV head, tokens and, for few tokens over many rows, by rows; the split
/// and so the result do not depend on the number of threads.
void attend_tokens(const AttentionShape& shape, const TokenQueries& queries,
                   const CausalWindow& visible, std::span<const RowSpan> spans, PartialView out);

}  // namespace topkv
