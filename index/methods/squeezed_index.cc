#include "index/methods/squeezed_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "index/common/index_factory.h"
#include "index/common/scratch.h"
#include "index/common/spec.h"
#include "index/common/topk_stream.h"
#include "src/core/math/dot.h"
#include "src/core/math/vector_math.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t means_at_a_time = 512;  // that a thread scores

std::string text_of(const SqueezedParams& params) {
  return fmt::format("squeezed:c={},coarse={},s={}", params.fine, params.coarse, params.sparsity);
}

/// Equation 1 in place, of scaled scores; keys(i): N_i. False where the sum is beyond float32.
template <class Keys>
bool weigh_scores(float* scores, std::int64_t count, const Keys& keys) {
  const float high = max_of(scores, count);
  exp_shifted(scores, count, high);
  double total = 0;
  for (std::int64_t i = 0; i < count; ++i) total += static_cast<double>(keys(i)) * scores[i];
  if (!(total > 0) || total == std::numeric_limits<double>::infinity()) return false;
  scale_by(scores, count, static_cast<float>(1 / total));
  return true;
}

/// averages [heads, count] of what is weighed over the tokens of a question. score(queries, out):
/// [heads, count], for a token's queries; keys(h, i): N_i for a head. A token whose scores are
/// beyond float32 has no say.
template <class Score, class Keys>
void average(const TokenHeads& first, std::int64_t tokens, std::int64_t count, const Score& score,
             const Keys& keys, std::vector<float>& scores, std::vector<float>& averages) {
  const auto all = static_cast<std::size_t>(first.heads * count);
  averages.assign(all, 0.0F);
  scores.resize(all);
  std::vector<std::int64_t> weighed(static_cast<std::size_t>(first.heads), 0);  // tokens
  for (std::int64_t t = 0; t < tokens; ++t) {
    score(first.queries + t * first.heads * first.dim, scores.data());
    rank_not_numbers_last(scores);
    scale_by(scores.data(), first.heads * count, first.scale);
    for (std::int64_t h = 0; h < first.heads; ++h) {
      float* of = scores.data() + h * count;
      if (!weigh_scores(of, count, [&](std::int64_t i) { return keys(h, i); })) continue;
      add_scaled(averages.data() + h * count, 1.0F, of, count);
      ++weighed[static_cast<std::size_t>(h)];
    }
  }
  for (std::int64_t h = 0; h < first.heads; ++h) {
    const std::int64_t of_head = weighed[static_cast<std::size_t>(h)];
    if (of_head > 1) scale_by(averages.data() + h * count, count, 1 / static_cast<float>(of_head));
  }
}

class SqueezedFactory final : public ClusterFactory {
 public:
  explicit SqueezedFactory(const SqueezedParams& params)
      : ClusterFactory({.chooses_for = ChoosesFor::question,
                        .learns_queries = params.sparsity > 0 || params.coarse > 0}),
        params_(params) {}
  std::string text() const override { return text_of(params_); }
  std::unique_ptr<HeadIndex> make() const override {
    return std::make_unique<SqueezedIndex>(params_);
  }
  void learn(KeyIndex& index, const PrefillQueries& queries,
             const std::stop_token& /*stop*/) const override {
    dynamic_cast<SqueezedIndex&>(index).learn(queries);
  }
  void learn_together(std::span<KeyIndex* const> heads,
                      const std::stop_token& stop) const override {
    std::vector<SqueezedIndex*> all;
    for (KeyIndex* head : heads) all.push_back(&dynamic_cast<SqueezedIndex&>(*head));
    SqueezedIndex::calibrate(all, stop);
  }

 private:
  SqueezedParams params_;
};

}  // namespace

SqueezedIndex::SqueezedIndex(const SqueezedParams& params)
    : ClusterIndex(
          {.text = text_of(params), .keys_per_cluster = 100.0 / static_cast<double>(params.fine)}),
      params_(params) {}

std::int64_t SqueezedIndex::bin_of(float importance) {
  if (!(importance > 0)) return bins - 1;
  return std::clamp<std::int64_t>(std::llround(-64 * std::log2(importance)), 0, bins - 1);
}

std::int64_t SqueezedIndex::memory() const {
  const auto own = sizeof(SqueezedIndex) - sizeof(ClusterIndex) +
                   coarse_.cluster.capacity() * sizeof(coarse_.cluster[0]) +
                   keys_of_.capacity() * sizeof(keys_of_[0]) +
                   coarse_centroids_.capacity() * sizeof(float);
  return ClusterIndex::memory() + static_cast<std::int64_t>(own);
}

std::int64_t SqueezedIndex::bytes_searched() const {
  const double read = clusters_read_ < 0 ? static_cast<double>(clusters()) : clusters_read_;
  const auto centroids = static_cast<double>(coarse_clusters()) + read;
  return std::llround(centroids * 4 * static_cast<double>(keys().dim));
}

void SqueezedIndex::set_thresholds(const Thresholds& of_token, const Thresholds& of_question) {
  of_token_ = of_token;
  of_question_ = of_question;
}

void SqueezedIndex::clear() {
  ClusterIndex::clear();
  coarse_ = {};
  keys_of_ = {};
  coarse_centroids_ = {};
}

KeyView SqueezedIndex::coarse_centroids() const {
  return {reinterpret_cast<const std::byte*>(coarse_centroids_.data()), DType::f32,
          coarse_clusters(), keys().dim, 4 * keys().dim};
}

void SqueezedIndex::insert(std::int64_t first, const std::stop_token& stop) {
  ClusterIndex::insert(first, stop);
  if (!has_coarse()) return;
  if (first == 0) {
    const KeyView fine = centroids();
    const auto* data = reinterpret_cast<const float*>(fine.data);
    const std::int64_t wanted = std::llround(static_cast<double>(size() * params_.coarse) / 100);
    coarse_ = cluster_vectors({data, data + fine.count * fine.dim}, wanted, stop);
  }
  gather_coarse();
}

/// The keys and the centroids of all coarse clusters.
void SqueezedIndex::gather_coarse() {
  const auto dim = static_cast<std::size_t>(keys().dim);
  const auto count = static_cast<std::size_t>(coarse_clusters());
  std::vector<double> sums(count * dim);
  std::vector<double> fine(count);
  keys_of_.assign(count, 0);
  for (std::int64_t c = 0; c < clusters(); ++c) {
    const auto of = static_cast<std::size_t>(coarse_of(c));
    const auto* centroid = reinterpret_cast<const float*>(centroids().key(c));
    for (std::size_t j = 0; j < dim; ++j) sums[of * dim + j] += centroid[j];
    keys_of_[of] += members(c);
    ++fine[of];
  }
  coarse_centroids_.resize(count * dim);
  for (std::size_t i = 0; i < sums.size(); ++i)
    coarse_centroids_[i] = static_cast<float>(sums[i] / fine[i / dim]);
}

/// Workspace::coarse.
void SqueezedIndex::weigh_coarse(const TokenHeads& first, std::int64_t tokens,
                                 Workspace& workspace) const {
  average(
      first, tokens, coarse_clusters(),
      [&](const float* queries, float* out) {
        score_all(queries, first.heads, coarse_centroids(), means_at_a_time, out);
      },
      [&](std::int64_t, std::int64_t i) { return keys_of_[static_cast<std::size_t>(i)]; },
      workspace.scores, workspace.coarse);
}

/// Workspace::survives and read.
void SqueezedIndex::read_survivors(std::int64_t heads, std::int64_t threshold,
                                   Workspace& workspace) const {
  const std::int64_t count = coarse_clusters();
  workspace.survives.resize(static_cast<std::size_t>(heads * count));
  for (std::size_t i = 0; i < workspace.survives.size(); ++i)
    workspace.survives[i] = bin_of(workspace.coarse[i]) < threshold ? 1 : 0;
  workspace.read.clear();
  for (std::int64_t c = 0; c < clusters(); ++c) {
    bool any = false;
    for (std::int64_t h = 0; h < heads; ++h)
      any = any || workspace.survives[static_cast<std::size_t>(h * count + coarse_of(c))] != 0;
    if (any) workspace.read.push_back(c);
  }
}

/// Workspace::fine, of the survivors.
void SqueezedIndex::weigh_fine(const TokenHeads& first, std::int64_t tokens,
                               Workspace& workspace) const {
  const auto& read = workspace.read;
  const std::int64_t count = std::ssize(read);
  const auto survives = [&](std::int64_t h, std::int64_t i) {
    const std::int64_t coarse = coarse_of(read[static_cast<std::size_t>(i)]);
    return workspace.survives[static_cast<std::size_t>(h * coarse_clusters() + coarse)] != 0;
  };
  average(
      first, tokens, count,
      [&](const float* queries, float* out) {
        parallel_for(count, means_at_a_time, [&](std::int64_t begin, std::int64_t end) {
          dot_gather(queries, first.heads, centroids(), read.data() + begin, end - begin,
                     out + begin, count);
        });
        for (std::int64_t h = 0; h < first.heads; ++h) {
          for (std::int64_t i = 0; i < count; ++i) {
            if (!survives(h, i)) out[h * count + i] = no_threshold;  // another head's
          }
        }
      },
      [&](std::int64_t, std::int64_t i) { return members(read[static_cast<std::size_t>(i)]); },
      workspace.scores, workspace.some);
  workspace.fine.assign(static_cast<std::size_t>(first.heads * clusters()), no_threshold);
  for (std::int64_t h = 0; h < first.heads; ++h) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (!survives(h, i)) continue;
      workspace.fine[static_cast<std::size_t>(h * clusters() + read[static_cast<std::size_t>(i)])] =
          workspace.some[static_cast<std::size_t>(h * count + i)];
    }
  }
}

/// Workspace::fine. first: of the tokens of a question, the first.
void SqueezedIndex::weigh(const TokenHeads& first, std::int64_t tokens,
                          std::int64_t coarse_threshold, Workspace& workspace) const {
  if (has_coarse()) {
    weigh_coarse(first, tokens, workspace);
    read_survivors(first.heads, coarse_threshold, workspace);
    return weigh_fine(first, tokens, workspace);
  }
  average(
      first, tokens, clusters(),
      [&](const float* queries, float* out) {
        score_all(queries, first.heads, centroids(), means_at_a_time, out);
      },
      [&](std::int64_t, std::int64_t i) { return members(i); }, workspace.scores, workspace.fine);
}

void SqueezedIndex::choose_together(const TokenHeads& first, std::span<const PositionRange> allowed,
                                    std::int64_t k,
                                    std::span<std::vector<std::int64_t>> found) const {
  const std::int64_t tokens = std::ssize(allowed);
  // The order of a token's importances is that of its scores.
  if (tokens == 1 && !chooses_fewer()) return choose(first, allowed[0], k, found);
  const Thresholds& thresholds = tokens == 1 ? of_token_ : of_question_;
  const Scratch<Workspace> workspace;
  weigh(first, tokens, thresholds.coarse, *workspace);
  for (float& importance : workspace->fine) {
    if (bin_of(importance) >= thresholds.fine) importance = no_threshold;
  }
  for (std::int64_t h = 0; h < first.heads; ++h) {
    keep_best(workspace->fine.data() + h * clusters(), chooses_fewer(), allowed, k,
              &found[static_cast<std::size_t>(h)], first.heads);
  }
}

KeySummaries SqueezedIndex::planned_key_summaries(std::int64_t dim, std::int64_t keys) const {
  if (has_coarse()) return {};
  KeySummaries centroids = ClusterIndex::planned_key_summaries(dim, keys);
  centroids.weighed = chooses_fewer();
  return centroids;
}

KeySummaries SqueezedIndex::key_summaries() const {
  if (has_coarse()) return {};
  KeySummaries centroids = ClusterIndex::key_summaries();
  centroids.weighed = chooses_fewer();
  for (std::int64_t c = 0; centroids.weighed && c < clusters(); ++c)
    centroids.sizes.push_back(static_cast<float>(members(c)));
  return centroids;
}

bool SqueezedIndex::choose_given(const TokenHeads& token, PositionRange allowed, std::int64_t k,
                                 const CandidateEntries& given,
                                 std::span<std::vector<std::int64_t>> found) const {
  if (!chooses_fewer()) return ClusterIndex::choose_given(token, allowed, k, given, found);
  const Scratch<GivenScores> room;
  for (std::int64_t h = 0; h < token.heads; ++h) {
    const float log_sum = given.log_sums[static_cast<std::size_t>(h)];
    if (!std::isfinite(log_sum)) return false;
    const std::span<Scored> scored = score_given(token.query(h), centroids(), given, h, *room);
    for (Scored& cluster : scored) {
      const float importance = std::exp(token.scale * cluster.score - log_sum);
      cluster.score = bin_of(importance) < of_token_.fine ? importance : no_threshold;
    }
    if (!take_given(scored, true, allowed, k, found[static_cast<std::size_t>(h)])) return false;
  }
  return true;
}

std::shared_ptr<const IndexFactory> squeezed_factory(std::string_view spec,
                                                     std::string_view options) {
  SqueezedParams params;
  parse_options(spec, options,
                {{"c", &params.fine, 1, 100},
                 {"coarse", &params.coarse, 0, 99},
                 {"s", &params.sparsity, 0, 99}});
  if (params.coarse >= params.fine) {
    throw InvalidArgument(fmt::format(
        "index \"{}\": coarse is {} and c is {} percent of the keys; there must be fewer coarse "
        "centroids than fine ones: write coarse=1, or coarse=0 for one level",
        one_line(spec), params.coarse, params.fine));
  }
  return std::make_shared<SqueezedFactory>(params);
}

void SqueezedIndex::fields(Archive& archive) {
  ClusterIndex::fields(archive);
  for (Thresholds* thresholds : {&of_token_, &of_question_}) {
    archive.value(thresholds->coarse);
    archive.value(thresholds->fine);
  }
  archive.value(clusters_read_);
  archive.value(coarse_.clusters);
  archive.array(coarse_.cluster);
  if (!archive.reading()) return;
  for (const Thresholds& thresholds : {of_token_, of_question_})
    archive.check(thresholds.coarse >= 0 && thresholds.coarse <= bins && thresholds.fine >= 0 &&
                      thresholds.fine <= bins,
                  "a threshold is outside the bins");
  archive.check(std::ssize(coarse_.cluster) == (has_coarse() ? clusters() : 0) &&
                    coarse_.clusters >= (has_coarse() ? 1 : 0) && coarse_.clusters <= clusters(),
                "its coarse clusters do not belong to its clusters");
  archive.check(clusters_read_ <= static_cast<double>(clusters()),
                "it reads more clusters than there are");
  if (!has_coarse()) return;
  check_groups_used(coarse_.cluster, coarse_.clusters, archive);
  gather_coarse();
}

}  // namespace topkv
