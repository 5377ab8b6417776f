// Methods that evict rows: which keys remain is decided by the attention that the prefill gave
// them, before any question is known.
//
// h2o     H2O (Zhang et al., NeurIPS 2023, "Heavy-Hitter Oracle"): the keys with the largest sum of
//         attention weights over the queries so far. Their budget has as many recent tokens as
//         heavy hitters; here recent tokens are the window.
// tova    TOVA (Oren et al. 2024, "Transformers are Multi-State RNNs"): those with the largest
//         weights of the last token's query.
//
// Weights are summed over the heads of a group, which share what remains. Simplified: eviction is
// that of the whole prefill at once (what was evicted at one token and would be missed at another
// is still there), H2O's sums are over up to 512 queries spread evenly over the text, and answers
// do not change the ranking. For fixed contexts: keys that come later rank last.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "index/common/prefill_queries.h"
#include "index/common/rule_based_index.h"
#include "topkv/index_spec.h"

namespace topkv {

enum class Evicts : std::uint8_t { h2o, tova };

class EvictingIndex final : public RuleBasedIndex {
 public:
  explicit EvictingIndex(Evicts by) : by_(by) {}

  /// Ranks the keys. Throws InvalidArgument when there are no queries.
  void learn(const PrefillQueries& queries, const std::stop_token& stop);

  std::int64_t memory() const override;
  std::int64_t bytes_searched() const override { return 0; }
  std::string spec() const override { return by_ == Evicts::h2o ? "h2o" : "tova"; }

 protected:
  void insert(std::int64_t first, const std::stop_token& stop) override;
  void clear() override { ranked_ = {}; }
  void fields(Archive& archive) override;
  void choose(const TokenHeads& token, PositionRange allowed, std::int64_t k,
              std::span<std::vector<std::int64_t>> found) const override;

 private:
  Evicts by_;
  std::vector<std::int64_t> ranked_;  // all positions, those kept longest first
};

std::shared_ptr<const IndexFactory> h2o_factory();
std::shared_ptr<const IndexFactory> tova_factory();

}  // namespace topkv
