#include "src/session/recall.h"

#include <algorithm>
#include <cmath>

namespace topkv {

void count_recall(SessionCore& session, const QueriesByHead& heads, std::int64_t layer,
                  std::int64_t head, const std::function<std::int64_t(std::int64_t q)>& rows_of,
                  const std::function<void(std::int64_t q, std::span<const std::int64_t> best,
                                           std::vector<std::int64_t>& have)>& found) {
  const HeadQueries& of_head = heads[head];
  const AttentionShape& shape = session.shape;
  SessionStats& stats = session.stats;
  std::int64_t rows = 0;
  for (std::int64_t q = 0; q < of_head.count(); ++q) rows = std::max(rows, rows_of(q));
  SearchResult wanted;
  session.segments[0].search(nullptr, layer, head, heads.block(head, of_head.allowed[0]), rows,
                             nullptr, wanted);
  std::vector<std::int64_t> have;
  for (std::int64_t q = 0; q < of_head.count(); ++q) {
    const auto all = wanted.positions(q);
    const auto best = all.first(std::min(all.size(), static_cast<std::size_t>(rows_of(q))));
    have.clear();
    found(q, best, have);
    std::sort(have.begin(), have.end());
    double mass = 0;
    double mass_found = 0;
    const float scale = shape.softmax_scale();
    for (std::size_t i = 0; i < best.size(); ++i) {
      const bool hit = std::binary_search(have.begin(), have.end(), best[i]);
      ++stats.exact_rows;
      stats.exact_rows_found += hit;
      const auto score = [&](std::size_t at) {
        const float scaled = scale * wanted.scores(q)[at];
        return shape.softcap > 0 ? shape.softcap * std::tanh(scaled / shape.softcap) : scaled;
      };
      const double weight = std::exp(score(i) - score(0));  // the best is first
      mass += weight;
      mass_found += hit ? weight : 0;
    }
    if (mass > 0) {
      const auto percent = static_cast<std::size_t>(100 * mass_found / mass * (1 + 1e-12));
      ++stats.mass_found[std::min<std::size_t>(percent, 100)];
    }
  }
}

}  // namespace topkv
