#include "index/tails/summary_tail.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "index/common/spec.h"
#include "index/common/tail_factory.h"
#include "index/common/tail_loop.h"
#include "src/core/math/dot.h"
#include "src/core/math/vector_math.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

constexpr std::int64_t groups_at_a_time = 512;

}  // namespace

/// Of one query.
struct SummaryTail::Workspace {
  std::vector<float> terms;   // [2, dim]: what means and variances are multiplied with
  std::vector<float> scores;  // [groups]: of their masses
  std::vector<std::pair<std::int64_t, std::int64_t>> removed;  // (group, row), ascending
  std::vector<std::int64_t> rows;                              // of one group
  std::vector<std::pair<std::int64_t, GroupLess>> less;        // of groups with rows removed
};

/// Rows that are attended or not in the range. Those of pages that are wholly out of it are left
/// out here: their mass becomes nothing.
void SummaryTail::find_removed(PositionRange allowed, std::span<const std::int64_t> taken,
                               Workspace& workspace) const {
  auto& removed = workspace.removed;
  removed.clear();
  const auto remove = [&](std::int64_t row) { removed.emplace_back(grouping_.of(row), row); };
  PositionRange known{0, rows_.count()};
  if (grouping_.page > 0) {
    known = known.within({allowed.begin / grouping_.page * grouping_.page,
                          (allowed.end + grouping_.page - 1) / grouping_.page * grouping_.page});
  }
  for (std::int64_t row = known.begin; row < std::min(allowed.begin, known.end); ++row) remove(row);
  for (std::int64_t row = std::max(allowed.end, known.begin); row < known.end; ++row) remove(row);
  for (const std::int64_t row : taken) {
    if (allowed.contains(row)) remove(row);
  }
  std::sort(removed.begin(), removed.end());
}

void SummaryTail::attend_one(const float* query, PositionRange allowed,
                             std::span<const std::int64_t> taken, float ceiling, float scale,
                             float softcap, Workspace& workspace, const TailParts& out) const {
  auto& terms = workspace.terms;
  auto& scores = workspace.scores;
  auto& removed = workspace.removed;
  auto& rows = workspace.rows;
  auto& less = workspace.less;
  const auto dim = static_cast<std::size_t>(rows_.dim());
  terms.assign(2 * dim, 0.0F);
  for (std::size_t i = 0; i < dim; ++i) {
    terms[i] = scale * query[i];
    if (softcap <= 0 && second_order_) terms[dim + i] = terms[i] * terms[i] / 2;
  }
  scores.resize(static_cast<std::size_t>(summaries_.groups()));
  parallel_for(summaries_.groups(), groups_at_a_time, [&](std::int64_t begin, std::int64_t end) {
    dot_block(terms.data(), 1, summaries_.keys().part({begin, end}),
              &scores[static_cast<std::size_t>(begin)], end - begin);
  });
  if (softcap > 0) soft_cap(scores.data(), std::ssize(scores), softcap);
  for (std::int64_t g = 0; g < summaries_.groups(); ++g) {
    float& score = scores[static_cast<std::size_t>(g)];
    const bool outside = grouping_.page > 0 && ((g + 1) * grouping_.page <= allowed.begin ||
                                                g * grouping_.page >= allowed.end);
    score = summaries_.count(g) == 0 || outside
                ? empty_lse
                : std::min(score, ceiling) + std::log(static_cast<float>(summaries_.count(g)));
  }
  find_removed(allowed, taken, workspace);
  std::size_t used = 0;
  for (std::size_t at = 0; at < removed.size();) {
    const std::int64_t group = removed[at].first;
    rows.clear();
    for (; at < removed.size() && removed[at].first == group; ++at)
      rows.push_back(removed[at].second);
    float& score = scores[static_cast<std::size_t>(group)];
    score = empty_lse;
    if (std::ssize(rows) >= summaries_.count(group)) continue;
    if (used == less.size()) less.emplace_back();
    auto& [of, rest] = less[used++];
    of = group;
    summaries_.without(rows_, group, rows, rest);
    double sum = 0;
    for (std::size_t i = 0; i < 2 * dim; ++i) sum += static_cast<double>(terms[i]) * rest.keys[i];
    if (softcap > 0) sum = softcap * std::tanh(sum / softcap);
    score = static_cast<float>(std::min(sum, static_cast<double>(ceiling)) +
                               std::log(static_cast<double>(rest.count)));
  }
  const float high = max_of(scores.data(), std::ssize(scores));
  if (high == empty_lse) return;
  const float total = exp_shifted(scores.data(), std::ssize(scores), high);
  out.estimate.lse[0] = high + std::log(total);
  double noise = 0;
  std::size_t next = 0;
  for (std::int64_t g = 0; g < summaries_.groups(); ++g) {
    const float weight = scores[static_cast<std::size_t>(g)] / total;
    const float* value = reinterpret_cast<const float*>(summaries_.values().key(g));
    std::int64_t count = summaries_.count(g);
    while (next < used && less[next].first < g) ++next;
    if (next < used && less[next].first == g) {
      value = less[next].second.value.data();
      count = less[next].second.count;
    }
    if (weight == 0) continue;
    add_scaled(out.estimate.out, weight, value, rows_.dim());
    noise +=
        static_cast<double>(weight) * weight * summaries_.spread(g) / static_cast<double>(count);
  }
  out.noise[0].values = static_cast<float>(noise);
}

void SummaryTail::attend(const QueryBlock& queries,
                         std::span<const std::span<const std::int64_t>> taken,
                         std::span<const float> ceilings, float scale, float softcap,
                         const TailParts& out) const {
  attend_each<Workspace>(
      queries, rows_.count(), out,
      [&](std::int64_t q, PositionRange allowed, Workspace& workspace, const TailParts& parts) {
        attend_one(queries.query(q), allowed, taken[static_cast<std::size_t>(q)],
                   ceilings[static_cast<std::size_t>(q)], scale, softcap, workspace, parts);
      });
}

std::unique_ptr<RowTail> transfer_summaries(RowTail* tail, const RowsView& rows,
                                            const Grouping& grouping, bool second_order,
                                            Archive& archive) {
  std::unique_ptr<SummaryTail> read;
  if (archive.reading()) read = std::make_unique<SummaryTail>(rows, grouping, second_order);
  (read ? *read : dynamic_cast<SummaryTail&>(*tail)).fields(archive);
  return read;
}

std::shared_ptr<const IndexFactory> pages_factory(std::string_view spec, std::string_view options) {
  class Pages final : public TailFactory {
   public:
    explicit Pages(std::int64_t size) : size_(size) {}
    std::string text() const override { return fmt::format("pages:size={}", size_); }
    std::unique_ptr<RowTail> make_tail(const KeyIndex& /*index*/, const RowsView& rows,
                                       const Accelerator& /*accelerator*/,
                                       const std::stop_token& stop) const override {
      return std::make_unique<SummaryTail>(rows, pages(rows), true, stop);
    }
    std::unique_ptr<RowTail> transfer_tail(RowTail* tail, const KeyIndex& /*index*/,
                                           const RowsView& rows, Archive& archive) const override {
      return transfer_summaries(tail, rows, pages(rows), true, archive);
    }

   private:
    Grouping pages(const RowsView& rows) const {
      return {.groups = (rows.count() + size_ - 1) / size_, .page = size_};
    }

    std::int64_t size_;
  };
  std::int64_t size = 16;
  parse_options(spec, options, {{"size", &size, 1, 4096}});
  return std::make_shared<Pages>(size);
}

}  // namespace topkv
