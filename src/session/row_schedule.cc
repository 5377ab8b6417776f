#include "src/session/row_schedule.h"

#include <algorithm>

namespace topkv {
namespace {

// Rows of a round, by the rows of the round before: a round costs a search and a pass of the tail,
// which take about as long for many rows as for few.
constexpr std::int64_t times_more = 16;
// Above this part of a context, attending all rows takes less than finding some.
constexpr std::int64_t most_part = 16;

}  // namespace

RowSchedule::RowSchedule(const RetrievalOptions& options, std::int64_t layers,
                         std::int64_t context_tokens)
    : k_(options.k.resolve(layers)),
      context_tokens_(context_tokens),
      mass_(options.mass.has_value()),
      error_(options.error.has_value()) {}

std::int64_t RowSchedule::first(std::int64_t layer) const {
  return has_rules_ && mass_ ? (k(layer) - 1) / times_more + 1 : k(layer);
}

std::int64_t RowSchedule::most(std::int64_t layer) const {
  return has_rules_ && error_ ? std::max(k(layer), context_tokens_ / most_part) : k(layer);
}

std::int64_t RowSchedule::after(std::int64_t layer, std::int64_t rows) const {
  if (rows < k(layer)) return k(layer);
  return rows > most(layer) / times_more ? 0 : times_more * rows;
}

std::int64_t RowSchedule::last(std::int64_t layer) const {
  std::int64_t last = 0;
  for (std::int64_t rows = first(layer); rows > 0; rows = has_rules_ ? after(layer, rows) : 0)
    last = rows;
  return last;
}

}  // namespace topkv
