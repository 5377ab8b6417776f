// lowrank:r=16. Keys by what they are along the r main axes of their head, which alone are read to
// score them; the k that score highest are attended (InfiniGen, Lee et al., OSDI 2024, section 4:
// "partial keys"; ShadowKV, Sun et al. 2025, keeps such low-rank keys to make keys of).
//
// Simplified: InfiniGen skews queries and keys by the singular vectors of the weights and takes the
// columns that are largest in a prompt; here the axes are the principal ones of the keys
// themselves, after RoPE. It guesses a layer's query from the layer before it; here the query is
// the layer's. Each query head chooses for itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "index/codes/code_axes.h"
#include "index/common/rule_based_index.h"
#include "src/core/memory/huge_vector.h"
#include "topkv/index_spec.h"

namespace topkv {

class LowrankIndex final : public RuleBasedIndex {
 public:
  /// rank: r; above the keys' dim: all axes.
  explicit LowrankIndex(std::int64_t rank) : rank_(rank) {}

  std::int64_t memory() const override;
  std::int64_t bytes_searched() const override { return memory(); }
  std::string spec() const override;

 protected:
  void insert(std::int64_t first, const std::stop_token& stop) override;
  void clear() override;
  void fields(Archive& archive) override;
  void choose(const TokenHeads& token, PositionRange allowed, std::int64_t k,
              std::span<std::vector<std::int64_t>> found) const override;

 private:
  std::int64_t rank() const { return std::min(rank_, axes_.dim()); }

  std::int64_t rank_;
  CodeAxes axes_;
  HugeVector<std::uint16_t> partial_;  // [keys, r], bf16, scaled and centred
};

/// spec: the whole string; options: what follows "lowrank:". Throws InvalidArgument.
std::shared_ptr<const IndexFactory> lowrank_factory(std::string_view spec,
                                                    std::string_view options);

}  // namespace topkv
