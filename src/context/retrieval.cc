#include "src/context/retrieval.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <utility>

#include "src/core/dot.h"
#include "src/core/printable.h"
#include "src/core/vector_math.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

}  // namespace

/// The k best that were found for a query join the candidates.
void Selector::collect(std::int64_t query, std::int64_t k) {
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    const auto positions = found_[s].positions(query);
    const auto scores = found_[s].scores(query);
    const auto best = std::min(std::ssize(positions), static_cast<std::ptrdiff_t>(k));
    for (std::size_t i = 0; std::cmp_less(i, best); ++i)
      candidates_.push_back({scores[i], segments_[s].first + positions[i]});
  }
}

/// Leaves the k best candidates, by position.
void Selector::take_best(std::int64_t k) {
  if (std::ssize(candidates_) > k) {
    std::nth_element(candidates_.begin(), candidates_.begin() + k, candidates_.end(),
                     [](const Candidate& a, const Candidate& b) {
                       return a.score > b.score || (a.score == b.score && a.position < b.position);
                     });
    candidates_.resize(static_cast<std::size_t>(k));
  }
  std::ranges::sort(candidates_, {}, &Candidate::position);
}

/// Has a query attend the candidates, which are by position.
void Selector::give(std::int64_t query) {
  std::size_t s = 0;
  for (const Candidate& candidate : candidates_) {
    while (s + 1 < segments_.size() && candidate.position >= segments_[s + 1].first) ++s;
    chosen_[s][static_cast<std::size_t>(query)].push_back(candidate.position - segments_[s].first);
  }
}

void Selector::choose(std::int64_t k) {
  const std::int64_t queries = found_[0].queries();
  reset(queries);
  for (std::int64_t q = 0; q < queries; ++q) {
    candidates_.clear();
    collect(q, k);
    take_best(k);
    float& ceiling = ceilings_[static_cast<std::size_t>(q)];
    ceiling = infinity;
    if (std::ssize(candidates_) == k)
      ceiling = std::ranges::min(candidates_, {}, &Candidate::score).score;
    give(q);
  }
}

void Selector::choose_shared(std::int64_t k, const Groups& groups) {
  const std::int64_t queries = found_[0].queries();
  reset(queries);
  for (std::int64_t first = 0; first < queries; first += groups.heads) {
    candidates_.clear();
    for (std::int64_t h = 0; h < groups.heads; ++h) {
      const auto before = std::ssize(candidates_);
      collect(first + h, k);
      // What was found for it and is not among the k best scores no more than the last of these.
      const auto own = std::span(candidates_).subspan(static_cast<std::size_t>(before));
      float& ceiling = ceilings_[static_cast<std::size_t>(first + h)];
      ceiling = -infinity;
      if (std::ssize(own) >= k) {
        std::ranges::nth_element(own, own.begin() + (k - 1), std::ranges::greater{},
                                 &Candidate::score);
        ceiling = own[static_cast<std::size_t>(k - 1)].score;
        candidates_.resize(static_cast<std::size_t>(before + k));
      }
    }
    std::ranges::sort(candidates_, {}, &Candidate::position);
    const auto same = [](const Candidate& a, const Candidate& b) {
      return a.position == b.position;
    };
    candidates_.erase(std::unique(candidates_.begin(), candidates_.end(), same), candidates_.end());
    score_candidates(groups, first);
    all_.assign(candidates_.begin(), candidates_.end());
    take_best(k);
    // Of the others the scores are known.
    const std::int64_t count = std::ssize(all_);
    auto taken = candidates_.begin();
    for (std::int64_t i = 0; i < count; ++i) {
      if (taken != candidates_.end() &&
          taken->position == all_[static_cast<std::size_t>(i)].position) {
        ++taken;
        continue;
      }
      for (std::int64_t h = 0; h < groups.heads; ++h) {
        float& ceiling = ceilings_[static_cast<std::size_t>(first + h)];
        ceiling = std::max(ceiling, scores_[static_cast<std::size_t>(h * count + i)]);
      }
    }
    for (std::int64_t h = 0; h < groups.heads; ++h) {
      float& ceiling = ceilings_[static_cast<std::size_t>(first + h)];
      if (ceiling == -infinity) ceiling = infinity;  // all were taken
      give(first + h);
    }
  }
}

/// Candidates, by position, get the sum of their softmax weights for the heads of the group that
/// begins with a query; scores_: their inner products.
void Selector::score_candidates(const Groups& groups, std::int64_t first) {
  const std::int64_t count = std::ssize(candidates_);
  scores_.resize(static_cast<std::size_t>(groups.heads * count));
  std::int64_t at = 0;
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    const bool last = s + 1 == segments_.size();
    positions_.clear();
    for (std::int64_t i = at; i < count; ++i) {
      const std::int64_t position = candidates_[static_cast<std::size_t>(i)].position;
      if (!last && position >= segments_[s + 1].first) break;
      positions_.push_back(position - segments_[s].first);
    }
    if (positions_.empty()) continue;
    const RowsView rows = segments_[s].rows(groups.layer, groups.kv_head);
    dot_gather(groups.queries + first * rows.dim(), groups.heads, rows.keys, positions_.data(),
               std::ssize(positions_), scores_.data() + at, count);
    at += std::ssize(positions_);
  }
  for (Candidate& candidate : candidates_) candidate.score = 0;
  weights_.resize(static_cast<std::size_t>(count));
  for (std::int64_t h = 0; h < groups.heads && count > 0; ++h) {
    std::copy_n(scores_.begin() + h * count, count, weights_.begin());
    scale_by(weights_.data(), count, groups.scale);
    if (groups.softcap > 0) soft_cap(weights_.data(), count, groups.softcap);
    const float high = max_of(weights_.data(), count);
    const float whole = exp_shifted(weights_.data(), count, high);
    if (!(whole > 0)) continue;  // hostile scores: not a number
    for (std::size_t i = 0; i < weights_.size(); ++i) candidates_[i].score += weights_[i] / whole;
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
  ceilings_.resize(std::max(ceilings_.size(), count));
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

std::int64_t Selector::rows(std::int64_t query, std::size_t segments) const {
  std::int64_t sum = 0;
  for (std::size_t s = 0; s < segments; ++s)
    sum += std::ssize(chosen_[s][static_cast<std::size_t>(query)]);
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
          printable_beginning(text)));
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
