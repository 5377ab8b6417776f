#include <algorithm>

#include "topkv/key_index.h"

namespace topkv {

void SearchResult::reset(std::int64_t queries, std::int64_t k) {
  k_ = k;
  counts_.assign(static_cast<std::size_t>(queries), 0);
  const auto slots = static_cast<std::size_t>(queries * k);
  // Each by its own size: the one may have grown when the other could not.
  if (positions_.size() < slots) positions_.resize(slots);
  if (scores_.size() < slots) scores_.resize(slots);
}

std::span<const std::int64_t> SearchResult::positions(std::int64_t query) const {
  const auto i = static_cast<std::size_t>(query);
  return {positions_.data() + query * k_, static_cast<std::size_t>(counts_[i])};
}

std::span<const float> SearchResult::scores(std::int64_t query) const {
  const auto i = static_cast<std::size_t>(query);
  return {scores_.data() + query * k_, static_cast<std::size_t>(counts_[i])};
}

void SearchResult::copy(const SearchResult& from, std::int64_t first, std::int64_t count) {
  reset(count, from.k());
  for (std::int64_t i = 0; i < count; ++i) {
    const auto positions = from.positions(first + i);
    std::ranges::copy(positions, position_slots(i).begin());
    std::ranges::copy(from.scores(first + i), score_slots(i).begin());
    set_count(i, std::ssize(positions));
  }
}

void SearchResult::keep(std::span<const std::int64_t> queries) {
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const std::int64_t from = queries[i];
    const auto to = static_cast<std::int64_t>(i);
    if (from != to) {
      std::ranges::copy(positions(from), position_slots(to).begin());
      std::ranges::copy(scores(from), score_slots(to).begin());
    }
    counts_[i] = counts_[static_cast<std::size_t>(from)];
  }
  counts_.resize(queries.size());
}

std::span<std::int64_t> SearchResult::position_slots(std::int64_t query) {
  return {positions_.data() + query * k_, static_cast<std::size_t>(k_)};
}

std::span<float> SearchResult::score_slots(std::int64_t query) {
  return {scores_.data() + query * k_, static_cast<std::size_t>(k_)};
}

void SearchResult::set_count(std::int64_t query, std::int64_t count) {
  counts_[static_cast<std::size_t>(query)] = count;
}

}  // namespace topkv
