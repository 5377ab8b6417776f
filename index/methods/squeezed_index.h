// squeezed:c=5,coarse=0,s=0. Squeezed Attention (Hooper et al., ACL 2025, "Squeezed Attention:
// Accelerating Long Context Length LLM Inference"): k-means over the context's keys by their
// directions, as many centroids as 5 % of the keys. A query head chooses by the importance of
// cluster i with N_i keys, scores scaled as in attention (equation 1):
//
//   S_i = exp(q·C_i) / Σ_j N_j exp(q·C_j)
//
// s=0: the best until k keys are attended. s > 0: at most k keys of the clusters above a threshold,
// the same for all layers and heads, which leaves out s percent of the keys on average over the
// last 100 tokens of the context, so that heads attend different numbers of keys.
//
// coarse=1: hierarchical lookup (the paper's section on it): k-means over the centroids, as many
// coarse ones as 1 % of the keys; each is the mean of its fine ones. Coarse clusters whose
// importance (equation 1 over coarse clusters, N_j their keys) is below a threshold of their own
// are left out: it leaves out half of the keys, as in the paper's experiments, so that s below 50
// comes to about 50. Of the others alone fine centroids are read, and the sum of equation 1 is over
// these. The fine threshold is set by importances of that sum, so that s percent are left out in
// all.
//
// A question, a step of several tokens, chooses once: importances, at both levels, are averaged
// over its tokens, and its tokens attend the same keys, each those that it sees. Its thresholds are
// set by importances averaged over those last 100 tokens. Longer questions than a step holds, and
// those for which more rows are found than are held at a time, are averaged part by part.
//
// Simplified: one set of thresholds for questions of any length. Where the paper has one threshold
// for questions and tokens alike, each of the two here leaves out what was asked for. The last 100
// tokens are clustered as well. For fixed contexts: keys that come later join the cluster that
// points where they do.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string_view>
#include <vector>

#include "index/common/prefill_queries.h"
#include "index/lists/clustering.h"
#include "index/methods/cluster_index.h"

namespace topkv {

/// All in percent.
struct SqueezedParams {
  std::int64_t fine = 5;      ///< centroids, of the keys
  std::int64_t coarse = 0;    ///< likewise; 0: there is one level
  std::int64_t sparsity = 0;  ///< keys that the thresholds leave out; 0: the fine one none
};

class SqueezedIndex final : public ClusterIndex {
 public:
  /// Bins of importances, largest first, by their logarithms: from 1 down to 2^-64, 64 to a factor
  /// of 2.
  static constexpr std::int64_t bins = 4096;
  static std::int64_t bin_of(float importance);

  /// Importances that are kept: those of the first so many bins; `bins`: all.
  struct Thresholds {
    std::int64_t coarse = bins;
    std::int64_t fine = bins;
  };

  explicit SqueezedIndex(const SqueezedParams& params);

  std::int64_t memory() const override;
  /// Coarse centroids, and so many fine ones as the last tokens' heads read on average; all before
  /// it has learned.
  std::int64_t bytes_searched() const override;

  /// Takes the last tokens' queries, until calibrate. Throws InvalidArgument when there are none.
  void learn(const PrefillQueries& queries);
  /// Sets the thresholds of indices that have learned, all alike.
  static void calibrate(std::span<SqueezedIndex* const> heads, const std::stop_token& stop);

  /// None with two levels.
  KeySummaries key_summaries() const override;
  KeySummaries planned_key_summaries(std::int64_t dim, std::int64_t keys) const override;

  const Thresholds& of_token() const { return of_token_; }
  const Thresholds& of_question() const { return of_question_; }
  void set_thresholds(const Thresholds& of_token, const Thresholds& of_question);

  /// The coarse cluster of a cluster (ClusterIndex::grouping). REQUIRES: params.coarse > 0.
  std::int64_t coarse_of(std::int64_t cluster) const {
    return coarse_.cluster[static_cast<std::size_t>(cluster)];
  }

 protected:
  void insert(std::int64_t first, const std::stop_token& stop) override;
  void clear() override;
  void fields(Archive& archive) override;
  bool chooses_fewer() const override { return params_.sparsity > 0 || params_.coarse > 0; }
  bool joins_questions() const override { return true; }
  void choose_together(const TokenHeads& first, std::span<const PositionRange> allowed,
                       std::int64_t k, std::span<std::vector<std::int64_t>> found) const override;
  bool choose_given(const TokenHeads& token, PositionRange allowed, std::int64_t k,
                    const CandidateEntries& given,
                    std::span<std::vector<std::int64_t>> found) const override;

 private:
  struct Histogram;
  /// Of one question.
  struct Workspace {
    std::vector<float> scores;           // of a token
    std::vector<float> coarse;           // [heads, coarse clusters]: importances
    std::vector<std::uint8_t> survives;  // likewise: whether its clusters are looked at
    std::vector<std::int64_t> read;      // clusters that any head looks at
    std::vector<float> some;             // [heads, read]: importances
    std::vector<float> fine;             // [heads, clusters]; -inf: not looked at
  };
  /// Queries of the context's last tokens.
  struct Observed {
    std::vector<float> queries;  // [tokens, group, dim]
    std::int64_t tokens = 0;
    std::int64_t group = 1;
    float scale = 1;
  };

  bool has_coarse() const { return params_.coarse > 0; }
  std::int64_t coarse_clusters() const { return has_coarse() ? coarse_.clusters : 0; }
  KeyView coarse_centroids() const;
  void gather_coarse();
  void weigh_coarse(const TokenHeads& first, std::int64_t tokens, Workspace& workspace) const;
  void read_survivors(std::int64_t heads, std::int64_t threshold, Workspace& workspace) const;
  void weigh_fine(const TokenHeads& first, std::int64_t tokens, Workspace& workspace) const;
  void weigh(const TokenHeads& first, std::int64_t tokens, std::int64_t coarse_threshold,
             Workspace& workspace) const;
  template <class Use>
  void each_observed(std::int64_t tokens, const std::stop_token& stop, const Use& use) const;
  static Thresholds find_thresholds(std::span<SqueezedIndex* const> heads, bool questions,
                                    const std::stop_token& stop);

  SqueezedParams params_;
  Clustering coarse_;                   // of the clusters
  std::vector<std::int64_t> keys_of_;   // per coarse cluster
  HugeVector<float> coarse_centroids_;  // [coarse clusters, dim]
  Thresholds of_token_, of_question_;
  double clusters_read_ = -1;  // for a token, on average; below 0: not known
  Observed observed_;          // between learn and calibrate
};

/// spec: the whole string; options: what follows the colon. Throws InvalidArgument.
std::shared_ptr<const IndexFactory> squeezed_factory(std::string_view spec,
                                                     std::string_view options);

}  // namespace topkv
