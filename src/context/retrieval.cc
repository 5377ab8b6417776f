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

void Selector::search(const KeyIndex& context, const KeyIndex& own, const float* queries,
                      std::int64_t query_count, std::int64_t dim,
                      std::span<const PositionRange> context_allowed,
                      std::span<const PositionRange> own_allowed, std::int64_t k) {
  const auto any = [](std::span<const PositionRange> ranges) {
    return std::any_of(ranges.begin(), ranges.end(),
                       [](const PositionRange& r) { return r.size() > 0; });
  };
  from_context_.reset(query_count, 1);
  from_own_.reset(query_count, 1);
  if (any(context_allowed))
    context.search({queries, query_count, dim, context_allowed}, k, from_context_);
  if (any(own_allowed)) own.search({queries, query_count, dim, own_allowed}, k, from_own_);
  context_size_ = context.size();
}

void Selector::choose(std::int64_t k, std::int64_t shared) {
  const std::int64_t query_count = from_context_.queries();
  selections_.resize(std::max(selections_.size(), static_cast<std::size_t>(query_count)));
  lowest_.resize(std::max(lowest_.size(), static_cast<std::size_t>(query_count)));
  for (std::int64_t first = 0; first < query_count; first += shared) {
    candidates_.clear();
    for (std::int64_t q = first; q < first + shared; ++q) {
      const auto gather = [&](const SearchResult& found, std::int64_t offset) {
        const auto positions = found.positions(q);
        const auto scores = found.scores(q);
        const auto best = std::min(std::ssize(positions), static_cast<std::ptrdiff_t>(k));
        for (std::size_t i = 0; std::cmp_less(i, best); ++i) {
          candidates_.push_back({scores[i], positions[i] + offset});
        }
      };
      gather(from_context_, 0);
      gather(from_own_, context_size_);
    }
    take_best(k);
    float lowest = std::numeric_limits<float>::infinity();
    if (std::ssize(candidates_) == k) {
      for (const Candidate& candidate : candidates_) lowest = std::min(lowest, candidate.score);
    }
    std::fill_n(lowest_.begin() + first, shared, lowest);
    Selection& selection = selections_[static_cast<std::size_t>(first)];
    selection.context.clear();
    selection.own.clear();
    for (const Candidate& candidate : candidates_) {
      if (candidate.position < context_size_) {
        selection.context.push_back(candidate.position);
      } else {
        selection.own.push_back(candidate.position - context_size_);
      }
    }
    for (std::int64_t q = first + 1; q < first + shared; ++q) {
      selections_[static_cast<std::size_t>(q)] = selection;
    }
  }
}

void Selector::keep(std::span<const std::int64_t> queries) {
  from_context_.keep(queries);
  from_own_.keep(queries);
}

void Selector::reset(std::int64_t queries) {
  const auto count = static_cast<std::size_t>(queries);
  selections_.resize(std::max(selections_.size(), count));
  for (std::size_t i = 0; i < count; ++i) {
    selections_[i].context.clear();
    selections_[i].own.clear();
  }
}

void Selector::take_own(std::int64_t query, const PositionRange& range) {
  std::vector<std::int64_t>& own = selections_[static_cast<std::size_t>(query)].own;
  own.clear();
  for (std::int64_t p = range.begin; p < range.end; ++p) own.push_back(p);
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
