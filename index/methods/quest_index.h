// quest:page=16. Quest (Tang et al., ICML 2024, "QUEST: Query-Aware Sparsity for Efficient
// Long-Context LLM Inference"): pages of consecutive keys, each known by the smallest and largest
// value that it has in every channel. A page's score,
//
//   Σ_i max(q_i min_i, q_i max_i)                                        (section 3.3, algorithm 1)
//
// is none of its keys' scores exceeded by any, and the keys of the pages that score highest are
// attended. Each query head chooses for itself. (The paper attends all rows in the first two
// layers: RetrievalOptions::dense_layers.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "index/common/rule_based_index.h"
#include "src/core/memory/huge_vector.h"
#include "topkv/index_spec.h"

namespace topkv {

class QuestIndex final : public RuleBasedIndex {
 public:
  /// page: keys of one.
  explicit QuestIndex(std::int64_t page) : page_(page) {}

  std::int64_t memory() const override;
  std::int64_t bytes_searched() const override { return memory(); }
  std::string spec() const override;

  /// Scores of pages for queries [heads, dim]: out[h * pages.size() + p - pages.begin].
  /// REQUIRES: within the pages.
  void score_pages(const float* queries, std::int64_t heads, PositionRange pages, float* out) const;
  std::int64_t pages() const { return (size() + page_ - 1) / page_; }

  KeySummaries key_summaries() const override;
  KeySummaries planned_key_summaries(std::int64_t dim, std::int64_t keys) const override;

 protected:
  void insert(std::int64_t first, const std::stop_token& stop) override;
  void clear() override { bounds_ = {}; }
  void fields(Archive& archive) override;
  void choose(const TokenHeads& token, PositionRange allowed, std::int64_t k,
              std::span<std::vector<std::int64_t>> found) const override;
  bool choose_given(const TokenHeads& token, PositionRange allowed, std::int64_t k,
                    const CandidateEntries& given,
                    std::span<std::vector<std::int64_t>> found) const override;

 private:
  KeyView bounds() const;
  void take(std::span<const Scored> best, PositionRange allowed, std::int64_t k,
            std::vector<std::int64_t>& found) const;

  std::int64_t page_;
  /// [pages, 2, dim], bf16: of each channel the largest value, then of each the smallest, both
  /// rounded away from the values, so that scores remain bounds.
  HugeVector<std::uint16_t> bounds_;
};

/// spec: the whole string; options: what follows "quest:". Throws InvalidArgument.
std::shared_ptr<const IndexFactory> quest_factory(std::string_view spec, std::string_view options);

}  // namespace topkv
