// Exact attention of consecutive tokens over rows that lie in one array: prefill, and a session's
// window and sinks.
#pragma once

#include <cstdint>
#include <span>

#include "src/attention/query_view.h"
#include "src/core/math/row_format.h"
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

/// Rows of consecutive positions: row i is position first + i. They may lie in two arrays: the rows
/// of a context, and those of a session after them.
struct RowSpan {
  RowsView rows;
  std::int64_t first = 0;
  RowsView more = {};  ///< of the positions after those of `rows`

  std::int64_t count() const { return rows.count() + more.count(); }
  std::int64_t end() const { return first + count(); }
  std::int64_t dim() const { return rows.count() > 0 ? rows.dim() : more.dim(); }
  /// Returns the rows of a range of positions. REQUIRES: the range lies within the span.
  RowSpan part(PositionRange positions) const;
  /// Writes the key, or the value, of a position as float32: [head_dim].
  void key(std::int64_t position, float* out) const { decode_half(&RowsView::keys, position, out); }
  void value(std::int64_t position, float* out) const {
    decode_half(&RowsView::values, position, out);
  }

 private:
  void decode_half(KeyView RowsView::*half, std::int64_t position, float* out) const {
    const std::int64_t row = position - first;
    if (row < rows.count()) return decode(rows.*half, row, out);
    decode(more.*half, row - rows.count(), out);
  }
};

/// Up to this many tokens, a step on the host gives each token, bit for bit, what steps of one
/// token give. Drafts are verified in such steps.
inline constexpr std::int64_t few_step_tokens = 16;

/// Partials of the queries over those rows of each KV head's span that they may attend.
/// spans: one for each KV head, of the same positions. out: heads = [tokens, q_heads], overwritten.
/// shape: gives the scale and the cap of scores. Split over threads by KV head, tokens and, for few
/// tokens over many rows, by rows; the split and so the result do not depend on the number of
/// threads.
void attend_tokens(const AttentionShape& shape, const TokenQueries& queries,
                   const CausalWindow& visible, std::span<const RowSpan> spans, PartialView out);

/// attend_tokens for a few tokens, each of which attends by itself: its partial is the same, bit
/// for bit, whatever other tokens there are, and whatever rows the spans have after it.
void attend_few_tokens(const AttentionShape& shape, const TokenQueries& queries,
                       const CausalWindow& visible, std::span<const RowSpan> spans,
                       PartialView out);

}  // namespace topkv
