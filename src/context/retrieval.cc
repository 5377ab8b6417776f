#include "src/context/retrieval.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <utility>

#include "topkv/error.h"

namespace topkv {

void Selector::take_best(std::int64_t k) {
  // A row found for several heads of a group counts once, with its best score.
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return a.position < b.position || (a.position == b.position && a.score > b.score);
  });
  candidates_.erase(
      std::unique(candidates_.begin(), candidates_.end(),
                  [](const Candidate& a, const Candidate& b) { return a.position == b.position; }),
      candidates_.end());
  if (static_cast<std::int64_t>(candidates_.size()) <= k) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + k, candidates_.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.score > b.score || (a.score == b.score && a.position < b.position);
                   });
  candidates_.resize(static_cast<std::size_t>(k));
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.position < b.position; });
}

void Selector::choose(std::int64_t k, std::int64_t shared) {
  const std::int64_t query_count = found_[0].queries();
  reset(query_count);
  lowest_.resize(std::max(lowest_.size(), static_cast<std::size_t>(query_count)));
  for (std::int64_t first = 0; first < query_count; first += shared) {
    candidates_.clear();
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      for (std::int64_t q = first; q < first + shared; ++q) {
        const auto positions = found_[s].positions(q);
        const auto scores = found_[s].scores(q);
        const auto best = std::min(std::ssize(positions), static_cast<std::ptrdiff_t>(k));
        for (std::size_t i = 0; std::cmp_less(i, best); ++i)
          candidates_.push_back({scores[i], segments_[s].first + positions[i]});
      }
    }
    take_best(k);
    float lowest = std::numeric_limits<float>::infinity();
    if (std::ssize(candidates_) == k) {
      for (const Candidate& candidate : candidates_) lowest = std::min(lowest, candidate.score);
    }
    std::fill_n(lowest_.begin() + first, shared, lowest);
    std::size_t s = 0;
    for (const Candidate& candidate : candidates_) {
      while (s + 1 < segments_.size() && candidate.position >= segments_[s + 1].first) ++s;
      chosen_[s][static_cast<std::size_t>(first)].push_back(candidate.position -
                                                            segments_[s].first);
    }
    for (auto& chosen : chosen_) {
      for (std::int64_t q = first + 1; q < first + shared; ++q)
        chosen[static_cast<std::size_t>(q)] = chosen[static_cast<std::size_t>(first)];
    }
  }
}

void Selector::keep(std::span<const std::int64_t> queries) {
  for (SearchResult& found : found_) found.keep(queries);
}

void Selector::find_nothing(std::int64_t queries) {
  for (SearchResult& found : found_) found.reset(queries, 1);
}

void Selector::reset(std::int64_t queries) {
  const auto count = static_cast<std::size_t>(queries);
  for (auto& chosen : chosen_) {
    chosen.resize(std::max(chosen.size(), count));
    for (std::size_t i = 0; i < count; ++i) chosen[i].clear();
  }
}

void Selector::take(std::size_t segment, std::int64_t query, const PositionRange& range) {
  std::vector<std::int64_t>& chosen = chosen_[segment][static_cast<std::size_t>(query)];
  chosen.clear();
  for (std::int64_t p = range.begin; p < range.end; ++p) chosen.push_back(p);
}

std::int64_t Selector::rows(std::int64_t query) const {
  std::int64_t sum = 0;
  for (const auto& chosen : chosen_) sum += std::ssize(chosen[static_cast<std::size_t>(query)]);
  return sum;
}

TopK TopK::parse(std::string_view text) {
  const auto number = [&](std::string_view digits) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 1) {
      throw InvalidArgument(fmt::format(
          "k '{}' is not understood; expected a number from 1 (64), one per layer (64,32,…), or a "
          "sum over the layers (uniform:512, linear:512)",
          text));
    }
    return value;
  };
  for (const auto& [prefix, schedule] :
       {std::pair{std::string_view("uniform:"), Schedule::uniform_sum},
        std::pair{std::string_view("linear:"), Schedule::linear_sum}}) {
    if (text.starts_with(prefix)) return {schedule, number(text.substr(prefix.size())), {}};
  }
  std::vector<std::int64_t> list;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    list.push_back(number(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return list.size() == 1 ? same(list[0]) : per_layer(std::move(list));
}

std::vector<std::int64_t> TopK::resolve(std::int64_t layers) const {
  const auto n = static_cast<std::size_t>(layers);
  if (schedule == Schedule::list) {
    if (list.size() != n) {
      throw InvalidArgument(
          fmt::format("k is given for {} layers; the model has {}", list.size(), layers));
    }
    for (const std::int64_t k : list) {
      if (k < 1)
        throw InvalidArgument(fmt::format("k is {} in one layer; it must be at least 1", k));
    }
    return list;
  }
  if (value < 1) throw InvalidArgument(fmt::format("k is {}; it must be at least 1", value));
  if (schedule == Schedule::same) return std::vector<std::int64_t>(n, value);
  if (value < layers) {
    throw InvalidArgument(
        fmt::format("a sum of {} rows gives none to some of the {} layers; raise it to {}", value,
                    layers, layers));
  }
  // One row each, and the rest by weight; rounding down leaves some over for the last layers.
  std::vector<std::int64_t> ks(n, 1);
  const std::int64_t rest = value - layers;
  const bool linear = schedule == Schedule::linear_sum;
  const std::int64_t weights = linear ? layers * (layers + 1) / 2 : layers;
  std::int64_t left = rest;
  for (std::size_t l = 0; l < n; ++l) {
    const std::int64_t weight = linear ? static_cast<std::int64_t>(l) + 1 : 1;
    // rest * weight / weights, whose product may overflow
    const std::int64_t share = rest / weights * weight + rest % weights * weight / weights;
    ks[l] += share;
    left -= share;
  }
  for (std::size_t l = n; left > 0; --left) {
    l = l == 0 ? n - 1 : l - 1;
    ++ks[l];
  }
  return ks;
}

}  // namespace topkv
