#include "src/attention/arriving_rows.h"

#include <algorithm>

#include "src/attention/prefetch_rows.h"
#include "src/attention/running_softmax.h"
#include "src/core/math/dot.h"

namespace topkv {
namespace {

constexpr std::size_t quad = 4;  // rows that are scored together: what takes as long for one
constexpr auto ahead = static_cast<std::size_t>(rows_ahead);
// Of a word of ArrivingRows::order_.
constexpr int position_shift = 32, part_shift = 30;
constexpr std::uint64_t part_bits = 3, number_bits = (1U << part_shift) - 1;
static_assert(query_forms <= part_bits);

}  // namespace

void ArrivingRows::begin(std::span<const Queries> queries, std::int64_t heads,
                         const RowsView& rows) {
  heads_ = heads;
  rows_ = rows;
  part_count_ = queries.size();
  for (std::size_t p = 0; p < part_count_; ++p) {
    Part& part = parts_[p];
    part.queries = queries[p];
    part.arrived.clear();
    part.scored = part.come = 0;
  }
}

void ArrivingRows::add(std::int64_t position) {
  std::size_t p = 0;
  while (p + 1 < part_count_ && !parts_[p].queries.meet.contains(position)) ++p;
  Part& part = parts_[p];
  if (part.arrived.size() < part.scored + ahead) prefetch_row(rows_, position);
  part.arrived.push_back(position);
}

bool ArrivingRows::score_some() {
  const std::span parts(parts_.data(), part_count_);
  for (Part& part : parts) {
    if (part.scored + quad > part.come) continue;
    score_quad(part, &part.arrived[part.scored]);
    return true;
  }
  for (Part& part : parts) part.come = part.arrived.size();
  return false;
}

/// positions: of the next four.
void ArrivingRows::score_quad(Part& part, const std::int64_t* positions) const {
  const std::size_t at = part.scored * static_cast<std::size_t>(heads_);
  if (part.scores.size() < at + quad * static_cast<std::size_t>(heads_)) {
    part.scores.resize(2 * at + quad * static_cast<std::size_t>(heads_));
  }
  for (std::size_t i = 0; i < quad; ++i) {
    if (const std::size_t next = part.scored + ahead + i; next < part.arrived.size())
      prefetch_row(rows_, part.arrived[next]);
  }
  dot_gather(part.queries.data, heads_, rows_.keys, positions, quad, &part.scores[at], quad);
  part.scored += quad;
}

void ArrivingRows::score_rest(Part& part) const {
  while (part.scored + quad <= part.arrived.size()) score_quad(part, &part.arrived[part.scored]);
  if (part.scored == part.arrived.size()) return;
  std::int64_t last[quad];  // the last is scored again in place of those that lack
  for (std::size_t i = 0; i < quad; ++i)
    last[i] = part.arrived[std::min(part.scored + i, part.arrived.size() - 1)];
  score_quad(part, last);
}

/// As numbers: comparing by way of the positions takes twice as long.
void ArrivingRows::sort_arrived() {
  order_.clear();
  for (std::size_t p = 0; p < part_count_; ++p) {
    const std::vector<std::int64_t>& arrived = parts_[p].arrived;
    for (std::size_t i = 0; i < arrived.size(); ++i) {
      order_.push_back(static_cast<std::uint64_t>(arrived[i]) << position_shift |
                       std::uint64_t{p} << part_shift | i);
    }
  }
  std::ranges::sort(order_);
  positions_.clear();
  for (const std::uint64_t of : order_)
    positions_.push_back(static_cast<std::int64_t>(of >> position_shift));
}

void ArrivingRows::attend(float scale, float softcap, PartialView out) {
  for (std::size_t p = 0; p < part_count_; ++p) score_rest(parts_[p]);
  sort_arrived();
  attend_tiles(
      rows_, positions_, scale, softcap, out,
      [&](std::int64_t first, std::int64_t count, float* scores, std::int64_t stride) {
        for (std::int64_t i = 0; i < count; ++i) {
          const std::uint64_t word = order_[static_cast<std::size_t>(first + i)];
          const std::size_t number = word & number_bits;
          const Part& part = parts_[word >> part_shift & part_bits];
          const float* of =
              &part.scores[number / quad * quad * static_cast<std::size_t>(heads_) + number % quad];
          for (std::int64_t h = 0; h < heads_; ++h)
            scores[h * stride + i] = of[h * static_cast<std::int64_t>(quad)];
        }
      });
}

}  // namespace topkv
