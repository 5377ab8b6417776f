#include "src/session/selector.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "src/core/math/dot.h"
#include "src/core/math/vector_math.h"

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
void Selector::keep_best(std::int64_t k) {
  if (std::ssize(candidates_) > k) {
    std::nth_element(candidates_.begin(), candidates_.begin() + k, candidates_.end(), ranks_before);
    candidates_.resize(static_cast<std::size_t>(k));
  }
  std::ranges::sort(candidates_, {}, &Scored::position);
}

/// Has a query attend the candidates, which are by position.
void Selector::give(std::int64_t query) {
  std::size_t s = 0;
  for (const Scored& candidate : candidates_) {
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
    keep_best(k);
    float& ceiling = ceilings_[static_cast<std::size_t>(q)];
    ceiling = infinity;
    if (std::ssize(candidates_) == k)
      ceiling = std::ranges::min(candidates_, {}, &Scored::score).score;
    give(q);
  }
}

void Selector::choose_shared(std::int64_t k, std::int64_t layer, std::int64_t kv_head,
                             const QueryBlock& queries, float softcap) {
  reset(queries.count);
  for (std::int64_t first = 0; first < queries.count; first += queries.group) {
    candidates_.clear();
    for (std::int64_t h = 0; h < queries.group; ++h) {
      const auto before = std::ssize(candidates_);
      collect(first + h, k);
      // What was found for it and is not among the k best scores no more than the last of these.
      const auto own = std::span(candidates_).subspan(static_cast<std::size_t>(before));
      float& ceiling = ceilings_[static_cast<std::size_t>(first + h)];
      ceiling = -infinity;
      if (std::ssize(own) >= k) {
        std::ranges::nth_element(own, own.begin() + (k - 1), std::ranges::greater{},
                                 &Scored::score);
        ceiling = own[static_cast<std::size_t>(k - 1)].score;
        candidates_.resize(static_cast<std::size_t>(before + k));
      }
    }
    std::ranges::sort(candidates_, {}, &Scored::position);
    const auto same = [](const Scored& a, const Scored& b) { return a.position == b.position; };
    candidates_.erase(std::unique(candidates_.begin(), candidates_.end(), same), candidates_.end());
    score_candidates(layer, kv_head, queries, first, softcap);
    all_.assign(candidates_.begin(), candidates_.end());
    keep_best(k);
    // Of the others the scores are known.
    const std::int64_t count = std::ssize(all_);
    auto taken = candidates_.begin();
    for (std::int64_t i = 0; i < count; ++i) {
      if (taken != candidates_.end() &&
          taken->position == all_[static_cast<std::size_t>(i)].position) {
        ++taken;
        continue;
      }
      for (std::int64_t h = 0; h < queries.group; ++h) {
        float& ceiling = ceilings_[static_cast<std::size_t>(first + h)];
        ceiling = std::max(ceiling, scores_[static_cast<std::size_t>(h * count + i)]);
      }
    }
    for (std::int64_t h = 0; h < queries.group; ++h) {
      float& ceiling = ceilings_[static_cast<std::size_t>(first + h)];
      if (ceiling == -infinity) ceiling = infinity;  // all were taken
      give(first + h);
    }
  }
}

/// Scoreds, by position, get the sum of their softmax weights for the heads of the group that
/// begins with a query; scores_: their inner products.
void Selector::score_candidates(std::int64_t layer, std::int64_t kv_head, const QueryBlock& queries,
                                std::int64_t first, float softcap) {
  const std::int64_t count = std::ssize(candidates_);
  scores_.resize(static_cast<std::size_t>(queries.group * count));
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
    const RowsView rows = segments_[s].rows(layer, kv_head);
    dot_gather(queries.query(first), queries.group, rows.keys, positions_.data(),
               std::ssize(positions_), scores_.data() + at, count);
    at += std::ssize(positions_);
  }
  for (Scored& candidate : candidates_) candidate.score = 0;
  weights_.resize(static_cast<std::size_t>(count));
  for (std::int64_t h = 0; h < queries.group && count > 0; ++h) {
    std::copy_n(scores_.begin() + h * count, count, weights_.begin());
    scale_by(weights_.data(), count, queries.scale);
    if (softcap > 0) soft_cap(weights_.data(), count, softcap);
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

}  // namespace topkv
