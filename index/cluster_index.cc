#include "index/cluster_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "index/faiss_clustering.h"
#include "index/index_kind.h"
#include "index/scan.h"
#include "index/scratch.h"
#include "index/spec.h"
#include "index/summary_tail.h"
#include "src/core/dot.h"
#include "src/core/threads.h"
#include "src/core/vector_math.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t clusters_at_a_time = 512;  // that a thread scores

/// Of one token.
struct Workspace {
  std::vector<float> scores;  // [heads, clusters]
  ScanKeeper keeper;
};

constexpr std::int64_t calibration_tokens = 100;  // of the context's last

/// Importances from 1 down to 2^-64, 64 bins to a factor of 2.
std::int64_t bin_of(float importance) {
  if (!(importance > 0)) return ClusterIndex::bins - 1;
  return std::clamp<std::int64_t>(std::llround(-64 * std::log2(importance)), 0,
                                  ClusterIndex::bins - 1);
}

void normalise(float* x, std::int64_t dim) {
  double square = 0;
  for (std::int64_t i = 0; i < dim; ++i) square += static_cast<double>(x[i]) * x[i];
  if (square == 0) return;
  const double factor = 1 / std::sqrt(square);
  for (std::int64_t i = 0; i < dim; ++i) x[i] = static_cast<float>(x[i] * factor);
}

class ClusterKind final : public IndexSpec::Kind {
 public:
  explicit ClusterKind(ClusterParams params) : params_(std::move(params)) {}
  bool learns_queries() const override { return params_.sparsity > 0; }
  void learn(KeyIndex& index, const PrefillQueries& queries,
             const std::stop_token& stop) const override {
    dynamic_cast<ClusterIndex&>(index).learn(queries, stop);
  }
  /// One threshold for all: bins are taken, largest importances first, while the keys in them are
  /// no more than are wanted.
  void learn_together(std::span<KeyIndex* const> heads) const override {
    std::vector<double> sums(static_cast<std::size_t>(ClusterIndex::bins), 0.0);
    double all = 0;
    for (KeyIndex* head : heads) {
      const auto of = dynamic_cast<ClusterIndex&>(*head).take_importances();
      for (std::size_t bin = 0; bin < of.size(); ++bin) {
        sums[bin] += of[bin];
        all += of[bin];
      }
    }
    const double wanted = all * static_cast<double>(100 - params_.sparsity) / 100;
    std::int64_t bins = 0;
    for (double taken = 0; bins < ClusterIndex::bins; ++bins) {
      taken += sums[static_cast<std::size_t>(bins)];
      if (taken > wanted) break;
    }
    for (KeyIndex* head : heads) dynamic_cast<ClusterIndex&>(*head).set_threshold(bins);
  }
  std::string text() const override { return params_.text; }
  bool ranks_keys() const override { return false; }
  std::unique_ptr<KeyIndex> make() const override {
    return std::make_unique<ClusterIndex>(params_);
  }
  bool has_tail() const override { return params_.estimates; }
  std::unique_ptr<RowTail> make_tail(const KeyIndex& index, const RowsView& rows,
                                     CodeEncoder* /*encoder*/,
                                     const std::stop_token& stop) const override {
    if (!has_tail()) return nullptr;
    const Grouping clusters = dynamic_cast<const ClusterIndex&>(index).grouping();
    return std::make_unique<SummaryTail>(rows, clusters, false, stop);
  }

 private:
  ClusterParams params_;
};

}  // namespace

std::int64_t ClusterIndex::memory() const {
  return static_cast<std::int64_t>(sizeof *this + cluster_of_.capacity() * sizeof(cluster_of_[0]) +
                                   centroids_.capacity() * sizeof(float)) +
         members_.memory();
}

void ClusterIndex::clear() {
  cluster_of_ = {};
  members_ = {};
  centroids_ = {};
}

KeyView ClusterIndex::centroids() const {
  return {reinterpret_cast<const std::byte*>(centroids_.data()), DType::f32, clusters(), keys().dim,
          4 * keys().dim};
}

void ClusterIndex::insert(std::int64_t first, const std::stop_token& stop) {
  cluster_of_.resize(static_cast<std::size_t>(size()));
  if (first > 0) {
    check_stop(stop);
    join_nearest(first);
  } else {
    const std::int64_t step = params_.segment > 0 ? params_.segment : size();
    for (std::int64_t begin = 0; begin < size();) {
      // What would be left as less than half a segment goes with the one before it.
      const std::int64_t end = size() - begin < step + step / 2 ? size() : begin + step;
      cluster({begin, end}, stop);
      begin = end;
    }
  }
  gather();
}

/// k-means of a segment's keys, by their directions.
void ClusterIndex::cluster(PositionRange segment, const std::stop_token& stop) {
  check_stop(stop);
  const std::int64_t dim = keys().dim;
  const std::int64_t count = segment.size();
  std::vector<float> directions(static_cast<std::size_t>(count * dim));
  std::vector<double> mean(static_cast<std::size_t>(dim));
  for (std::int64_t i = 0; i < count; ++i) {
    float* key = &directions[static_cast<std::size_t>(i * dim)];
    widen_key(keys(), segment.begin + i, key);
    for (std::int64_t j = 0; j < dim; ++j) mean[static_cast<std::size_t>(j)] += key[j];
  }
  for (std::int64_t i = 0; i < count; ++i) {
    float* key = &directions[static_cast<std::size_t>(i * dim)];
    for (std::int64_t j = 0; params_.centred && j < dim; ++j) {
      key[j] -= static_cast<float>(mean[static_cast<std::size_t>(j)] / static_cast<double>(count));
    }
    normalise(key, dim);
  }
  const auto wanted = static_cast<std::int64_t>(
      std::llround(static_cast<double>(count) / params_.keys_per_cluster));
  const std::int64_t centroids = std::clamp<std::int64_t>(wanted, 1, count);
  const std::int64_t before = clusters();
  std::vector<std::int64_t> nearest;
  try {
    nearest = cluster_directions(directions, count, dim, centroids, stop);
  } catch (const std::exception&) {
    check_stop(stop);
    throw;
  }
  // FAISS leaves clusters empty where keys repeat: numbers are given to those that have keys.
  std::vector<std::int32_t> number(static_cast<std::size_t>(centroids), -1);
  auto next = static_cast<std::int32_t>(before);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(nearest[static_cast<std::size_t>(i)]);
    if (number[at] < 0) number[at] = next++;
    cluster_of_[static_cast<std::size_t>(segment.begin + i)] = number[at];
  }
  centroids_.resize(static_cast<std::size_t>(next * dim));
  note_inserted(count);
}

/// Of keys that come later, the cluster whose centroid points where they do.
void ClusterIndex::join_nearest(std::int64_t first) {
  const std::int64_t dim = keys().dim;
  HugeVector<float> directions = centroids_;
  for (std::int64_t c = 0; c < clusters(); ++c)
    normalise(&directions[static_cast<std::size_t>(c * dim)], dim);
  KeyView view = centroids();
  view.data = reinterpret_cast<const std::byte*>(directions.data());
  parallel_for(size() - first, 64, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> key(static_cast<std::size_t>(dim));
    std::vector<float> scores(static_cast<std::size_t>(clusters()));
    for (std::int64_t position = first + begin; position < first + end; ++position) {
      widen_key(keys(), position, key.data());
      dot_block(key.data(), 1, view, scores.data(), clusters());
      cluster_of_[static_cast<std::size_t>(position)] = static_cast<std::int32_t>(
          std::max_element(scores.begin(), scores.end()) - scores.begin());
    }
  });
  note_inserted(size() - first);
}

/// The rows and the centroids of all clusters.
void ClusterIndex::gather() {
  const std::int64_t dim = keys().dim;
  members_ = GroupedRows(grouping(), size());
  parallel_for(clusters(), 64, [&](std::int64_t from, std::int64_t to) {
    std::vector<float> key(static_cast<std::size_t>(dim));
    std::vector<double> sums(static_cast<std::size_t>(dim));
    for (std::int64_t c = from; c < to; ++c) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (std::int64_t at = members_.begin(c); at < members_.begin(c + 1); ++at) {
        widen_key(keys(), members_.row(at), key.data());
        for (std::size_t j = 0; j < sums.size(); ++j) sums[j] += key[j];
      }
      for (std::int64_t j = 0; j < dim; ++j) {
        centroids_[static_cast<std::size_t>(c * dim + j)] =
            static_cast<float>(sums[static_cast<std::size_t>(j)] / static_cast<double>(members(c)));
      }
    }
  });
}

/// importances: of clusters, from their scores (which are spent) in place.
void ClusterIndex::weigh(float* scores, float scale) const {
  scale_by(scores, clusters(), scale);
  const float high = max_of(scores, clusters());
  exp_shifted(scores, clusters(), high);
  double total = 0;
  for (std::int64_t c = 0; c < clusters(); ++c)
    total += static_cast<double>(members(c)) * scores[c];
  scale_by(scores, clusters(), static_cast<float>(1 / total));
}

void ClusterIndex::learn(const PrefillQueries& queries, const std::stop_token& stop) {
  if (size() == 0) return;
  const std::int64_t all = std::ssize(queries.positions);
  const std::int64_t used = std::min(all - queries.spread, calibration_tokens);
  if (used <= 0) {
    throw InvalidArgument(
        spec() +
        ": sets its threshold by the attention of the context's last tokens, and this context has "
        "no queries: it was not told to keep them (ContextOptions::keep_queries), its rows were "
        "appended, its last ones taken back, or a step's out was its q or came by chunks; s=0 "
        "needs none");
  }
  importances_.assign(static_cast<std::size_t>(bins), 0.0);
  std::vector<float> scores(static_cast<std::size_t>(queries.group * clusters()));
  for (std::int64_t number = all - used; number < all; ++number) {
    check_stop(stop);
    dot_block(queries.token(number), queries.group, centroids(), scores.data(), clusters());
    for (std::int64_t h = 0; h < queries.group; ++h) {
      float* of = scores.data() + h * clusters();
      weigh(of, queries.scale);
      for (std::int64_t c = 0; c < clusters(); ++c) {
        importances_[static_cast<std::size_t>(bin_of(of[c]))] += static_cast<double>(members(c));
      }
    }
  }
}

void ClusterIndex::choose(const TokenHeads& token, PositionRange allowed, std::int64_t k,
                          std::span<std::vector<std::int64_t>> found) const {
  const Scratch<Workspace> workspace;
  auto& [scores, keeper] = *workspace;
  scores.resize(static_cast<std::size_t>(token.heads * clusters()));
  score_all(token.queries, token.heads, centroids(), clusters_at_a_time, scores.data());
  rank_not_numbers_last(scores);
  for (std::int64_t h = 0; h < token.heads; ++h) {
    if (chooses_fewer()) {
      float* of = scores.data() + h * clusters();
      weigh(of, token.scale);
      for (std::int64_t c = 0; c < clusters(); ++c) {
        if (bin_of(of[c]) >= bins_) of[c] = no_threshold;
      }
    }
    std::vector<std::int64_t>& list = found[static_cast<std::size_t>(h)];
    const auto add_cluster = [&](std::int64_t cluster) {
      for (std::int64_t at = members_.begin(cluster); at < members_.begin(cluster + 1); ++at) {
        const std::int64_t row = members_.row(at);
        if (std::ssize(list) < k && allowed.contains(row)) list.push_back(row);
      }
    };
    // The best k clusters hold as many rows, but where their rows are not allowed: then all are
    // ranked.
    for (std::int64_t ranked = std::min(k, clusters()); std::ssize(list) < k; ranked = clusters()) {
      list.clear();
      keeper.reset(ranked);
      keeper.push(scores.data() + h * clusters(), clusters(), 0);
      for (const Scored& cluster : keeper.sorted()) {
        if (chooses_fewer() && cluster.score == no_threshold) break;
        add_cluster(cluster.position);
      }
      if (ranked == clusters()) break;
    }
  }
}

std::shared_ptr<const IndexSpec::Kind> squeezed_kind(std::string_view spec,
                                                     std::string_view options) {
  std::int64_t percent = 5;
  std::int64_t sparsity = 0;
  parse_options(spec, options, {{"c", &percent, 1, 100}, {"s", &sparsity, 0, 99}});
  return std::make_shared<ClusterKind>(
      ClusterParams{.text = fmt::format("squeezed:c={},s={}", percent, sparsity),
                    .keys_per_cluster = 100.0 / static_cast<double>(percent),
                    .sparsity = sparsity});
}

std::shared_ptr<const IndexSpec::Kind> retroinfer_kind(std::string_view spec,
                                                       std::string_view options) {
  std::int64_t size = 16;
  std::int64_t segment = 8192;
  std::int64_t values = 1;
  parse_options(
      spec, options,
      {{"size", &size, 1, 4096}, {"segment", &segment, 1, 1 << 24}, {"v", &values, 0, 1}});
  return std::make_shared<ClusterKind>(ClusterParams{
      .text = fmt::format("retroinfer:size={},segment={},v={}", size, segment, values),
      .keys_per_cluster = static_cast<double>(size),
      .segment = segment,
      .centred = true,
      .estimates = values > 0});
}

}  // namespace topkv
