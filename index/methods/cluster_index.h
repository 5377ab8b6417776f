// Clusters of similar keys, each known by the mean of its keys; those whose centroids score highest
// are attended whole.
//
// What squeezed (squeezed_index.h) has in common with
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
#include <vector>

#include "index/common/index_factory.h"
#include "index/common/row_summaries.h"
#include "index/common/rule_based_index.h"
#include "index/lists/clustering.h"
#include "src/core/memory/huge_vector.h"
#include "topkv/index_spec.h"

namespace topkv {

struct ClusterParams {
  std::string text;  ///< of the spec
  double keys_per_cluster = 20;
  std::int64_t segment = 0;  ///< keys that are clustered by themselves; 0: all
  bool centred = false;      ///< less their segment's mean
};

class ClusterIndex : public RuleBasedIndex {
 public:
  explicit ClusterIndex(const ClusterParams& params) : params_(params) {}

  /// add(keys) and build(); clusterer: clusters them where it has room, if not null, and may go
  /// afterwards.
  void build_with(Clusterer* clusterer, const KeyView& keys, const std::stop_token& stop);

  std::int64_t memory() const override;
  std::int64_t bytes_searched() const override { return std::ssize(centroids_) * 4; }
  std::string spec() const override { return params_.text; }

  /// Valid while no key is added.
  Grouping grouping() const { return {.groups = clusters(), .group = cluster_of_.data()}; }

  KeySummaries key_summaries() const override;
  KeySummaries planned_key_summaries(std::int64_t dim, std::int64_t keys) const override;

 protected:
  void insert(std::int64_t first, const std::stop_token& stop) override;
  void clear() override;
  void fields(Archive& archive) override;
  void choose(const TokenHeads& token, PositionRange allowed, std::int64_t k,
              std::span<std::vector<std::int64_t>> found) const override;
  bool choose_given(const TokenHeads& token, PositionRange allowed, std::int64_t k,
                    const CandidateEntries& given,
                    std::span<std::vector<std::int64_t>> found) const override;

  /// Of vectors [count, dim] by their directions, into `wanted` clusters or as near to that as can
  /// be.
  Clustering cluster_vectors(std::vector<float> vectors, std::int64_t wanted,
                             const std::stop_token& stop) const;

  std::int64_t clusters() const {
    return keys().dim == 0 ? 0 : std::ssize(centroids_) / keys().dim;
  }
  /// [clusters]: the means of their keys.
  KeyView centroids() const;
  /// Keys of a cluster.
  std::int64_t members(std::int64_t cluster) const {
    return members_.begin(cluster + 1) - members_.begin(cluster);
  }

  /// Rows of the clusters that score highest, those of the best first: for each of some tokens up
  /// to k that it is allowed, found[t * stride]. scores: [clusters], none of them NaN. fewer:
  /// clusters that score -inf are left out, where else they come last.
  void keep_best(const float* scores, bool fewer, std::span<const PositionRange> allowed,
                 std::int64_t k, std::vector<std::int64_t>* found, std::int64_t stride) const;
  /// Likewise, of some clusters. False: others may have rows that are wanted.
  bool take_given(std::span<Scored> clusters, bool fewer, PositionRange allowed, std::int64_t k,
                  std::vector<std::int64_t>& found) const;

 private:
  template <class Use>
  void each_segment(std::int64_t keys, const Use& use) const;
  std::int64_t clusters_of(std::int64_t keys) const;
  bool take(std::span<const Scored> best, bool fewer, std::span<const PositionRange> allowed,
            std::int64_t k, std::vector<std::int64_t>* found, std::int64_t stride) const;
  void cluster(PositionRange segment, const std::stop_token& stop);
  void join_nearest(std::int64_t first);
  void gather();

  ClusterParams params_;
  Clusterer* clusterer_ = nullptr;        // during build_with
  std::vector<std::int32_t> cluster_of_;  // per key
  GroupedRows members_;                   // of the clusters
  HugeVector<float> centroids_;           // [clusters, dim]
};

/// Of indices that cluster keys.
class ClusterFactory : public IndexFactory {
 public:
  void build(KeyIndex& index, const KeyView& keys, const Accelerator& accelerator,
             const std::stop_token& stop) const override {
    dynamic_cast<ClusterIndex&>(index).build_with(accelerator.clusterer, keys, stop);
  }

 protected:
  /// Sets the traits that all indices of clusters have in common.
  explicit ClusterFactory(IndexTraits traits)
      : IndexFactory([&traits] {
          traits.ranks_keys = false;
          traits.has_clusters = true;
          return traits;
        }()) {}
};

/// spec: the whole string; options: what follows the colon. Throws InvalidArgument.
std::shared_ptr<const IndexFactory> retroinfer_factory(std::string_view spec,
                                                       std::string_view options);

}  // namespace topkv
