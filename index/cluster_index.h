// Clusters of similar keys, each known by the mean of its keys; those whose centroids score highest
// are attended whole.
//
// squeezed:c=5,s=0: Squeezed Attention (Hooper et al., ACL 2025), k-means over the context's
// normalised keys, as many centroids as 5 % of the keys. Each query head chooses by the importance
// of cluster i, S_i = exp(q·C_i) / Σ_j N_j exp(q·C_j) (equation 1), scores scaled as in attention:
// the best until k keys are attended, or, with s > 0, at most k keys of the clusters above one
// threshold, the same for all layers and heads, which leaves out s percent of the keys on average
// over the queries of the last 100 tokens of the context, so that heads attend different numbers of
// keys. Simplified: one level, and a question's tokens choose one by one. For fixed contexts: keys
// that come later join the cluster that points where they do.
//
// retroinfer:size=16,segment=8192,v=1: RetroInfer (Chen et al. 2025, "RetroInfer: A Vector-Storage
// Approach for Scalable Long-Context LLM Inference", section 4), spherical k-means within segments
// of consecutive tokens over keys less their segment's mean, some 16 keys a cluster. v=1: clusters
// that are not attended are estimated by their means (its estimation zone, summary_tail.h).
// Simplified: all of them are, where the paper leaves the lowest out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "index/choosing_index.h"
#include "index/prefill_queries.h"
#include "index/row_summaries.h"
#include "src/core/huge_vector.h"
#include "topkv/index_spec.h"

namespace topkv {

struct ClusterParams {
  std::string text;  ///< of the spec
  double keys_per_cluster = 20;
  std::int64_t segment = 0;   ///< keys that are clustered by themselves; 0: all
  bool centred = false;       ///< less their segment's mean
  bool estimates = false;     ///< has a tail
  std::int64_t sparsity = 0;  ///< percent of keys that a threshold leaves out; 0: there is none
};

class ClusterIndex final : public ChoosingIndex {
 public:
  explicit ClusterIndex(const ClusterParams& params) : params_(params) {}

  std::int64_t memory() const override;
  std::int64_t bytes_searched() const override { return std::ssize(centroids_) * 4; }
  std::string spec() const override { return params_.text; }

  /// How much of the last tokens' attention goes to clusters of which importance. Throws
  /// InvalidArgument when there are no queries.
  void learn(const PrefillQueries& queries, const std::stop_token& stop);
  /// Keys by the importance of their clusters, summed over those queries; then forgotten.
  std::vector<double> take_importances() { return std::move(importances_); }
  /// The bin that a threshold lies behind: what is in it and those before is attended.
  void set_threshold(std::int64_t bins) { bins_ = bins; }

  /// Bins of importances, largest first, by their logarithms.
  static constexpr std::int64_t bins = 4096;

  /// Valid while no key is added.
  Grouping grouping() const { return {.groups = clusters(), .group = cluster_of_.data()}; }

 protected:
  void insert(std::int64_t first, const std::stop_token& stop) override;
  void clear() override;
  bool chooses_fewer() const override { return params_.sparsity > 0; }
  void choose(const TokenHeads& token, PositionRange allowed, std::int64_t k,
              std::span<std::vector<std::int64_t>> found) const override;

 private:
  std::int64_t clusters() const {
    return keys().dim == 0 ? 0 : std::ssize(centroids_) / keys().dim;
  }
  KeyView centroids() const;
  /// Keys of a cluster.
  std::int64_t members(std::int64_t cluster) const {
    return members_.begin(cluster + 1) - members_.begin(cluster);
  }
  void weigh(float* scores, float scale) const;
  void cluster(PositionRange segment, const std::stop_token& stop);
  void join_nearest(std::int64_t first);
  void gather();

  ClusterParams params_;
  std::vector<std::int32_t> cluster_of_;  // per key
  GroupedRows members_;                   // of the clusters
  std::vector<double> importances_;       // per bin; between learning and setting a threshold
  std::int64_t bins_ = 0;
  HugeVector<float> centroids_;  // [clusters, dim]: the mean of their keys
};

/// spec: the whole string; options: what follows the colon. Throw InvalidArgument.
std::shared_ptr<const IndexSpec::Kind> squeezed_kind(std::string_view spec,
                                                     std::string_view options);
std::shared_ptr<const IndexSpec::Kind> retroinfer_kind(std::string_view spec,
                                                       std::string_view options);

}  // namespace topkv
