#include "index/methods/cluster_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "index/common/index_factory.h"
#include "index/common/scratch.h"
#include "index/common/spec.h"
#include "index/common/topk_stream.h"
#include "index/lists/faiss_clustering.h"
#include "index/tails/summary_tail.h"
#include "src/core/math/dot.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t clusters_at_a_time = 512;  // that a thread scores

class RetroinferFactory final : public ClusterFactory {
 public:
  RetroinferFactory(ClusterParams params, bool estimates)
      : ClusterFactory({.has_tail = estimates}), params_(std::move(params)) {}
  std::string text() const override { return params_.text; }
  std::unique_ptr<HeadIndex> make() const override {
    return std::make_unique<ClusterIndex>(params_);
  }
  std::unique_ptr<RowTail> transfer_tail(RowTail* tail, const KeyIndex& index, const RowsView& rows,
                                         Archive& archive) const override {
    if (!traits().has_tail) return nullptr;
    return transfer_summaries(tail, rows, dynamic_cast<const ClusterIndex&>(index).grouping(),
                              false, archive);
  }
  std::unique_ptr<RowTail> make_tail(const KeyIndex& index, const RowsView& rows,
                                     const Accelerator& /*accelerator*/,
                                     const std::stop_token& stop) const override {
    if (!traits().has_tail) return nullptr;
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

/// use(keys): consecutive ones, that are clustered by themselves.
template <class Use>
void ClusterIndex::each_segment(std::int64_t keys, const Use& use) const {
  const std::int64_t step = params_.segment > 0 ? params_.segment : keys;
  for (std::int64_t begin = 0; begin < keys;) {
    // What would be left as less than half a segment goes with the one before it.
    const std::int64_t end = keys - begin < step + step / 2 ? keys : begin + step;
    use(PositionRange{begin, end});
    begin = end;
  }
}

/// That are wanted of so many keys of a segment.
std::int64_t ClusterIndex::clusters_of(std::int64_t keys) const {
  const auto wanted =
      static_cast<std::int64_t>(std::llround(static_cast<double>(keys) / params_.keys_per_cluster));
  return std::clamp<std::int64_t>(wanted, 1, keys);
}

KeySummaries ClusterIndex::planned_key_summaries(std::int64_t dim, std::int64_t keys) const {
  KeySummaries centroids{.kind = KeySummaryKind::centroids, .dim = dim};
  each_segment(keys,
               [&](PositionRange segment) { centroids.count += clusters_of(segment.size()); });
  return centroids;
}

KeySummaries ClusterIndex::key_summaries() const {
  KeySummaries centroids{.kind = KeySummaryKind::centroids,
                         .count = clusters(),
                         .dim = keys().dim,
                         .data = this->centroids().data};
  centroids.spans.reserve(static_cast<std::size_t>(2 * clusters()));
  for (std::int64_t c = 0; c < clusters(); ++c) {
    centroids.spans.push_back(static_cast<std::int32_t>(members_.row(members_.begin(c))));
    centroids.spans.push_back(static_cast<std::int32_t>(members_.row(members_.begin(c + 1) - 1)));
  }
  return centroids;
}

void ClusterIndex::build_with(Clusterer* clusterer, const KeyView& keys,
                              const std::stop_token& stop) {
  add(keys, stop);
  clusterer_ = clusterer;
  try {
    build(stop);
  } catch (...) {
    clusterer_ = nullptr;
    throw;
  }
  clusterer_ = nullptr;
}

Clustering ClusterIndex::cluster_vectors(std::vector<float> vectors, std::int64_t wanted,
                                         const std::stop_token& stop) const {
  const std::int64_t dim = keys().dim;
  const std::int64_t clusters = std::clamp<std::int64_t>(wanted, 1, std::ssize(vectors) / dim);
  try {
    if (clusterer_ != nullptr) return clusterer_->cluster(vectors, clusters, stop);
  } catch (const OutOfMemory&) {  // the host's threads do it
  } catch (const Stopped&) {
    check_stop(stop);
  }
  try {
    return cluster_directions(std::move(vectors), dim, clusters, stop);
  } catch (const std::exception&) {
    check_stop(stop);
    throw;
  }
}

void ClusterIndex::insert(std::int64_t first, const std::stop_token& stop) {
  cluster_of_.resize(static_cast<std::size_t>(size()));
  if (first > 0) {
    check_stop(stop);
    join_nearest(first);
  } else {
    each_segment(size(), [&](PositionRange segment) { cluster(segment, stop); });
  }
  gather();
}

/// k-means of a segment's keys, by their directions.
void ClusterIndex::cluster(PositionRange segment, const std::stop_token& stop) {
  check_stop(stop);
  const std::int64_t dim = keys().dim;
  const std::int64_t count = segment.size();
  std::vector<float> vectors(static_cast<std::size_t>(count * dim));
  std::vector<double> mean(static_cast<std::size_t>(dim));
  for (std::int64_t i = 0; i < count; ++i) {
    float* key = &vectors[static_cast<std::size_t>(i * dim)];
    widen_key(keys(), segment.begin + i, key);
    for (std::int64_t j = 0; j < dim; ++j) mean[static_cast<std::size_t>(j)] += key[j];
  }
  for (std::int64_t i = 0; params_.centred && i < count * dim; ++i) {
    vectors[static_cast<std::size_t>(i)] -=
        static_cast<float>(mean[static_cast<std::size_t>(i % dim)] / static_cast<double>(count));
  }
  const auto before = static_cast<std::int32_t>(clusters());
  const Clustering found = cluster_vectors(std::move(vectors), clusters_of(count), stop);
  for (std::int64_t i = 0; i < count; ++i) {
    cluster_of_[static_cast<std::size_t>(segment.begin + i)] =
        before + found.cluster[static_cast<std::size_t>(i)];
  }
  centroids_.resize(static_cast<std::size_t>((before + found.clusters) * dim));
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

void ClusterIndex::keep_best(const float* scores, bool fewer,
                             std::span<const PositionRange> allowed, std::int64_t k,
                             std::vector<std::int64_t>* found, std::int64_t stride) const {
  const Scratch<TopKStream> keeper;
  // The best k clusters hold as many rows, but where their rows are not allowed: then all are
  // ranked.
  for (std::int64_t ranked = std::min(k, clusters());; ranked = clusters()) {
    keeper->reset(ranked);
    keeper->push(scores, clusters(), 0);
    if (take(keeper->sorted(), fewer, allowed, k, found, stride) || ranked == clusters()) return;
  }
}

/// False: of no use where there are other clusters, which may have rows that are wanted.
bool ClusterIndex::take(std::span<const Scored> best, bool fewer,
                        std::span<const PositionRange> allowed, std::int64_t k,
                        std::vector<std::int64_t>* found, std::int64_t stride) const {
  bool enough = true;
  for (std::size_t t = 0; t < allowed.size(); ++t) {
    std::vector<std::int64_t>& list = found[static_cast<std::int64_t>(t) * stride];
    list.clear();
    bool left_out = false;  // this one, so all that come after it
    for (const Scored& cluster : best) {
      left_out = fewer && cluster.score == no_threshold;
      if (left_out || std::ssize(list) == k) break;
      for (std::int64_t at = members_.begin(cluster.position);
           at < members_.begin(cluster.position + 1); ++at) {
        const std::int64_t row = members_.row(at);
        if (std::ssize(list) < k && allowed[t].contains(row)) list.push_back(row);
      }
    }
    enough = enough && (left_out || std::ssize(list) == k);
  }
  return enough;
}

bool ClusterIndex::take_given(std::span<Scored> given, bool fewer, PositionRange allowed,
                              std::int64_t k, std::vector<std::int64_t>& found) const {
  std::sort(given.begin(), given.end(), ranks_before);
  return take(given, fewer, {&allowed, 1}, k, &found, 1) || std::ssize(given) == clusters();
}

bool ClusterIndex::choose_given(const TokenHeads& token, PositionRange allowed, std::int64_t k,
                                const CandidateEntries& given,
                                std::span<std::vector<std::int64_t>> found) const {
  const Scratch<GivenScores> room;
  for (std::int64_t h = 0; h < token.heads; ++h) {
    const std::span<Scored> scored = score_given(token.query(h), centroids(), given, h, *room);
    if (!take_given(scored, false, allowed, k, found[static_cast<std::size_t>(h)])) return false;
  }
  return true;
}

void ClusterIndex::choose(const TokenHeads& token, PositionRange allowed, std::int64_t k,
                          std::span<std::vector<std::int64_t>> found) const {
  const Scratch<std::vector<float>> scores;
  scores->resize(static_cast<std::size_t>(token.heads * clusters()));
  score_all(token.queries, token.heads, centroids(), clusters_at_a_time, scores->data());
  rank_not_numbers_last(*scores);
  for (std::int64_t h = 0; h < token.heads; ++h)
    keep_best(scores->data() + h * clusters(), false, {&allowed, 1}, k,
              &found[static_cast<std::size_t>(h)], 1);
}

std::shared_ptr<const IndexFactory> retroinfer_factory(std::string_view spec,
                                                       std::string_view options) {
  std::int64_t size = 16;
  std::int64_t segment = 8192;
  std::int64_t values = 1;
  parse_options(
      spec, options,
      {{"size", &size, 1, 4096}, {"segment", &segment, 1, 1 << 24}, {"v", &values, 0, 1}});
  return std::make_shared<RetroinferFactory>(
      ClusterParams{
          .text = fmt::format("retroinfer:size={},segment={},v={}", size, segment, values),
          .keys_per_cluster = static_cast<double>(size),
          .segment = segment,
          .centred = true},
      values > 0);
}

void ClusterIndex::fields(Archive& archive) {
  archive.array(cluster_of_);
  archive.array(centroids_);
  archive.check(std::ssize(cluster_of_) == size() && clusters() > 0 &&
                    std::ssize(centroids_) == clusters() * keys().dim,
                "its clusters do not belong to these keys");
  if (!archive.reading()) return;
  check_groups_used(cluster_of_, clusters(), archive);
  members_ = GroupedRows(grouping(), size());
}

}  // namespace topkv
