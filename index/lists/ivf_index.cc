#include "index/lists/ivf_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "index/common/approximate_index.h"
#include "index/common/index_factory.h"
#include "index/common/rule_based_index.h"
#include "index/common/scratch.h"
#include "index/common/spec.h"
#include "index/common/topk_stream.h"
#include "index/lists/clustered_keys.h"
#include "src/core/math/dot.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t centroids_at_a_time = 512;  // that a thread scores
constexpr std::int64_t keys_at_a_time = 512;

struct IvfParams {
  std::int64_t size = 32;
  std::int64_t share = 32;

  std::string text() const { return fmt::format("ivf:size={},share={}", size, share); }
};

/// Of a group of queries.
struct ListSearch {
  std::vector<float> scores;        // [queries, lists], then [queries, rows]
  std::vector<std::int64_t> lists;  // read by some query, ascending
  std::vector<std::int64_t> rows;   // of those lists
};

/// Hands out the places of the k largest of these scores, or all where they are fewer.
template <class Take>
void keep_best(const float* scores, std::int64_t count, std::int64_t k, const Take& take) {
  const Scratch<TopKStream> keeper;
  keeper->reset(k);
  keeper->push(scores, count, 0);
  for (const Scored& one : keeper->sorted()) take(one.position);
}

class IvfIndex final : public ApproximateIndex {
 public:
  explicit IvfIndex(const IvfParams& params) : params_(params) {}

  std::int64_t memory() const override {
    return static_cast<std::int64_t>(sizeof *this) + lists_.memory() + rare_memory();
  }
  std::string spec() const override { return params_.text(); }

 protected:
  void insert_judged(std::int64_t first, std::vector<float>& residuals,
                     const std::stop_token& stop) override {
    const auto check = [&] { check_stop(stop); };
    const auto done = [&](std::int64_t count) { note_inserted(count); };
    if (first == 0) {
      lists_.learn(keys(), params_.size, residuals, check, done);
    } else {
      lists_.add(keys(), first, residuals, check, done);
    }
  }

  void clear_structure() override { lists_ = {}; }
  void structure_fields(Archive& archive) override { lists_.fields(keys(), archive); }

  void candidates(const float* query, PositionRange allowed, std::int64_t want,
                  std::vector<std::int64_t>& found) const override {
    propose({.data = query, .count = 1, .dim = keys().dim, .allowed = {&allowed, 1}}, want,
            {&found, 1});
  }

  void all_candidates(const QueryBlock& queries, std::int64_t want,
                      std::span<std::vector<std::int64_t>> found) const override {
    parallel_for(queries.count / queries.group, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t group = begin; group < end; ++group) {
        const std::int64_t first = group * queries.group;
        const auto at = static_cast<std::size_t>(first);
        const auto heads = static_cast<std::size_t>(queries.group);
        if (queries.allowed[at].size() == 0) continue;
        propose({.data = queries.query(first),
                 .count = queries.group,
                 .dim = queries.dim,
                 .allowed = queries.allowed.subspan(at, heads)},
                want, found.subspan(at, heads));
      }
    });
  }

 private:
  /// For queries of one range.
  void propose(const QueryBlock& queries, std::int64_t want,
               std::span<std::vector<std::int64_t>> found) const {
    const Scratch<ListSearch> workspace;
    auto& scores = workspace->scores;
    auto& lists = workspace->lists;
    auto& rows = workspace->rows;
    choose_lists(queries, want, *workspace);
    const PositionRange allowed = queries.allowed.front();
    rows.clear();
    for (const std::int64_t list : lists) {
      for (const std::int64_t row : lists_.of(list)) {
        if (allowed.contains(row)) rows.push_back(row);
      }
    }
    const std::int64_t count = std::ssize(rows);
    scores.resize(static_cast<std::size_t>(queries.count * count));
    parallel_for(count, keys_at_a_time, [&](std::int64_t begin, std::int64_t end) {
      dot_gather(queries.data, queries.count, keys(), rows.data() + begin, end - begin,
                 scores.data() + begin, count);
    });
    parallel_for(queries.count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t q = begin; q < end; ++q) {
        std::vector<std::int64_t>& proposed = found[static_cast<std::size_t>(q)];
        proposed.clear();
        keep_best(scores.data() + q * count, count, want, [&](std::int64_t row) {
          proposed.push_back(rows[static_cast<std::size_t>(row)]);
        });
      }
    });
  }

  /// workspace.lists = those that some query reads.
  void choose_lists(const QueryBlock& queries, std::int64_t want, ListSearch& workspace) const {
    auto& scores = workspace.scores;
    auto& lists = workspace.lists;
    const KeyView centroids = lists_.centroids();
    const std::int64_t count = lists_read(want);
    scores.resize(static_cast<std::size_t>(queries.count * centroids.count));
    score_all(queries.data, queries.count, centroids, centroids_at_a_time, scores.data());
    rank_not_numbers_last(scores);
    lists.resize(static_cast<std::size_t>(queries.count * count));
    parallel_for(queries.count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t q = begin; q < end; ++q) {
        std::int64_t* next = lists.data() + q * count;
        keep_best(scores.data() + q * centroids.count, centroids.count, count,
                  [&](std::int64_t list) { *next++ = list; });
      }
    });
    std::ranges::sort(lists);
    lists.erase(std::unique(lists.begin(), lists.end()), lists.end());
  }

  /// By one query: those of its share of the keys, but of many times the keys that are wanted.
  std::int64_t lists_read(std::int64_t want) const {
    const std::int64_t read = std::max(size() / params_.share, 48 * want);
    return std::clamp<std::int64_t>(read * lists_.count() / size(), 1, lists_.count());
  }

  IvfParams params_;
  ClusteredKeys lists_;
};

class IvfFactory final : public IndexFactory {
 public:
  /// A group reads the lists that any of its heads would.
  explicit IvfFactory(const IvfParams& params)
      : IndexFactory({.chooses_for = ChoosesFor::group}), params_(params) {}
  std::string text() const override { return params_.text(); }
  std::unique_ptr<HeadIndex> make() const override { return std::make_unique<IvfIndex>(params_); }

 private:
  IvfParams params_;
};

}  // namespace

std::shared_ptr<const IndexFactory> ivf_factory(std::string_view spec, std::string_view options) {
  IvfParams params;
  parse_options(spec, options,
                {{"size", &params.size, 1, 1 << 16}, {"share", &params.share, 1, 1 << 16}});
  return std::make_shared<IvfFactory>(params);
}

}  // namespace topkv
