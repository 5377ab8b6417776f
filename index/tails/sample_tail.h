// A tail of a uniform sample: of the rows that were not attended some are, each standing for as
// many (vAttention, Desai et al. 2025, "vAttention: Verified Sparse Attention": what a search
// selects beside a uniform sample of all others, section 4). Sums of weights and of weighted values
// are unbiased.
//
// With a tolerance ε and a probability δ the sample grows until, by the central limit theorem, both
// sums, those of the selected rows added, are off by more than ε / 2 of themselves with probability
// δ / 2 at most, as the first rows of the sample tell (the paper's budget, equation 6, for the
// denominator and, by the trace of the covariance, for the numerator). Simplified: sinks and window
// are not counted among the selected rows, which makes samples larger than needed, and the first
// rows are so many, not a share of all.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "index/common/row_tail.h"
#include "topkv/index_spec.h"

namespace topkv {

struct SampleParams {
  std::int64_t rows = 256;   ///< at least
  std::int64_t epsilon = 0;  ///< percent; 0: so many rows
  std::int64_t delta = 5;    ///< percent

  std::string text() const;
};

class SampleTail final : public RowTail {
 public:
  /// The rows outlive this.
  SampleTail(const SampleParams& params, const RowsView& rows) : params_(params), rows_(rows) {}

  /// Rows are drawn by a generator that begins with the query: the same query draws the same. Where
  /// the sample would be as large as what it stands for, all of it is attended instead.
  void attend(const QueryBlock& queries, std::span<const std::span<const std::int64_t>> taken,
              std::span<const float> ceilings, float scale, float softcap,
              const TailParts& out) const override;

  std::int64_t memory() const override { return sizeof *this; }
  /// With a tolerance: of the first rows, to which others come.
  std::int64_t bytes_read(std::int64_t heads) const override;

 private:
  struct Workspace;
  void attend_one(const float* query, PositionRange allowed, std::span<const std::int64_t> taken,
                  float scale, float softcap, Workspace& workspace, const TailParts& out) const;

  SampleParams params_;
  RowsView rows_;
};

/// "sample:rows=256,eps=0,delta=5", a tail alone.
/// spec: the whole string; options: what follows "sample:". Throws InvalidArgument.
std::shared_ptr<const IndexFactory> sample_factory(std::string_view spec, std::string_view options);

}  // namespace topkv
