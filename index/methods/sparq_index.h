// sparq:r=32,v=0. SparQ Attention (Ribar et al., ICML 2024, "SparQ Attention: Bandwidth-Efficient
// LLM Inference", algorithm 1): of a query's components the r largest alone are multiplied with
// those of all keys, and the k keys that score highest are attended. Keys are kept a second time
// for it, components first, so that reading r of them reads nothing else.
//
// The heads of a group read the same components, those with the largest sum of |q|, and attend the
// same rows, those with the largest sum of the approximate softmax weights (the paper's appendix on
// grouped queries).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "index/common/row_tail.h"
#include "index/common/rule_based_index.h"
#include "src/core/memory/huge_vector.h"
#include "topkv/index_spec.h"

namespace topkv {

/// The approximate scores of one token.
struct SparqScores {
  std::vector<std::int64_t> components;  ///< that were read, ascending
  std::vector<float> scores;             ///< [heads, range]: of scaled scores, before the softmax
};

class SparqIndex final : public RuleBasedIndex {
 public:
  /// components: r; above the keys' dim: all.
  explicit SparqIndex(std::int64_t components, std::int64_t values)
      : components_(components), values_(values) {}

  std::int64_t memory() const override;
  std::int64_t bytes_searched() const override {
    return 2 * size() * std::min(components_, keys().dim);
  }
  std::string spec() const override;

  /// Scores of the keys in a range (within the keys), divided as the paper has it by
  /// sqrt(dim * (Σ |q| of the components read) / Σ |q|), where scale is 1 / sqrt(dim); another
  /// scale stands in its place. scale: of the token.
  void score(const TokenHeads& token, PositionRange range, SparqScores& out) const;

  KeySummaries key_summaries() const override;
  KeySummaries planned_key_summaries(std::int64_t dim, std::int64_t keys) const override;

 protected:
  void insert(std::int64_t first, const std::stop_token& stop) override;
  void clear() override { blocks_ = {}; }
  void fields(Archive& archive) override;
  void choose(const TokenHeads& token, PositionRange allowed, std::int64_t k,
              std::span<std::vector<std::int64_t>> found) const override;
  bool choose_given(const TokenHeads& token, PositionRange allowed, std::int64_t k,
                    const CandidateEntries& given,
                    std::span<std::vector<std::int64_t>> found) const override;

 private:
  std::int64_t components_;
  std::int64_t values_;
  /// [blocks, dim, block_keys], bf16; keys that are not there yet are 0.
  HugeVector<std::uint16_t> blocks_;
};

/// spec: the whole string; options: what follows "sparq:". Throws InvalidArgument.
std::shared_ptr<const IndexFactory> sparq_factory(std::string_view spec, std::string_view options);

}  // namespace topkv
