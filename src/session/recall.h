// Recall of searches and scans, beside exact search (RetrievalOptions::measure_recall).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "src/session/head_queries.h"

namespace topkv {

/// Compares the rows that one KV head's queries found in the context with the rows that exact
/// search finds, and adds the result to the session's statistics.
///
/// rows_of(q): the number of rows that query q was to find. found(q, have): sets `have` to the
/// positions that it found, in any order; `best` are the positions of exact search.
void count_recall(SessionCore& session, const QueriesByHead& heads, std::int64_t layer,
                  std::int64_t head, const std::function<std::int64_t(std::int64_t q)>& rows_of,
                  const std::function<void(std::int64_t q, std::span<const std::int64_t> best,
                                           std::vector<std::int64_t>& have)>& found);

}  // namespace topkv
