#include "src/attention/arriving_rows.h"

#include <algorithm>

#include "src/attention/prefetch_rows.h"
#include "src/attention/running_softmax.h"
#include "src/core/math/dot.h"

namespace topkv {
namespace {

constexpr std::size_t quad = 4;  // rows that are scored together: what takes as long for one
constexpr std::uint64_t number_bits = 0xFFFFFFFF;
constexpr auto ahead = static_cast<std::size_t>(rows_ahead);

}  // namespace

void ArrivingRows::begin(const float* queries, std::int64_t heads, const RowsView& rows) {
  queries_ = queries;
  heads_ = heads;
  rows_ = rows;
  arrived_.clear();
  scored_ = come_ = 0;
}

void ArrivingRows::add(std::int64_t position) {
  if (arrived_.size() < scored_ + ahead) prefetch_row(rows_, position);
  arrived_.push_back(position);
}

bool ArrivingRows::score_some() {
  if (scored_ + quad <= come_) {
    score_quad(&arrived_[scored_]);
    return true;
  }
  come_ = arrived_.size();
  return false;
}

/// positions: of the next four.
void ArrivingRows::score_quad(const std::int64_t* positions) {
  const std::size_t at = scored_ * static_cast<std::size_t>(heads_);
  if (scores_.size() < at + quad * static_cast<std::size_t>(heads_)) {
    scores_.resize(2 * at + quad * static_cast<std::size_t>(heads_));
  }
  for (std::size_t i = 0; i < quad; ++i) {
    if (const std::size_t next = scored_ + ahead + i; next < arrived_.size())
      prefetch_row(rows_, arrived_[next]);
  }
  dot_gather(queries_, heads_, rows_.keys, positions, quad, &scores_[at], quad);
  scored_ += quad;
}

/// As numbers: comparing by way of the positions takes twice as long.
void ArrivingRows::sort_arrived() {
  order_.clear();
  for (const std::int64_t position : arrived_)
    order_.push_back(static_cast<std::uint64_t>(position) << 32 | order_.size());
  std::ranges::sort(order_);
  positions_.clear();
  for (const std::uint64_t of : order_) positions_.push_back(static_cast<std::int64_t>(of >> 32));
}

void ArrivingRows::attend(float scale, float softcap, PartialView out) {
  while (scored_ + quad <= arrived_.size()) score_quad(&arrived_[scored_]);
  if (scored_ < arrived_.size()) {  // the last is scored again in place of those that lack
    std::int64_t last[quad];
    for (std::size_t i = 0; i < quad; ++i)
      last[i] = arrived_[std::min(scored_ + i, arrived_.size() - 1)];
    score_quad(last);
  }
  sort_arrived();
  attend_tiles(
      rows_, positions_, scale, softcap, out,
      [&](std::int64_t first, std::int64_t count, float* scores, std::int64_t stride) {
        for (std::int64_t i = 0; i < count; ++i) {
          const std::size_t number = order_[static_cast<std::size_t>(first + i)] & number_bits;
          const float* of =
              &scores_[number / quad * quad * static_cast<std::size_t>(heads_) + number % quad];
          for (std::int64_t h = 0; h < heads_; ++h)
            scores[h * stride + i] = of[h * static_cast<std::int64_t>(quad)];
        }
      });
}

}  // namespace topkv
