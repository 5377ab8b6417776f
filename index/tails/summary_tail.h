// A tail of summaries: of each group of rows (row_summaries.h) that was not attended, the mass is
//
//   n exp(s q·c + s² Σ_i q_i² var_i / 2)
//
// with the mean c and the variances of its n keys (the second order term of the cumulants of the
// scores, without covariances), and its value the mean of their values. (RetroInfer, Chen et al.
// 2025, section 4.2, "estimation zone", has the first term alone; the second makes up for Jensen's
// inequality.) What the exponential is of is no more than a ceiling that no such row's score
// exceeds. Rows that were attended are taken out of their groups' summaries.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stop_token>

#include "index/common/row_summaries.h"
#include "index/common/row_tail.h"
#include "topkv/index_spec.h"

namespace topkv {

class SummaryTail final : public RowTail {
 public:
  /// The rows, and what grouping points to, outlive this. Throws as RowSummaries does.
  /// second_order: with the term of the variances.
  SummaryTail(const RowsView& rows, const Grouping& grouping, bool second_order,
              const std::stop_token& stop)
      : rows_(rows),
        grouping_(grouping),
        second_order_(second_order),
        summaries_(rows, grouping, stop) {}

  /// That fields() is to read.
  SummaryTail(const RowsView& rows, const Grouping& grouping, bool second_order)
      : rows_(rows), grouping_(grouping), second_order_(second_order) {}
  /// For a file.
  void fields(Archive& archive) {
    if (rows_.count() > 0) summaries_.fields(rows_, grouping_, archive);
  }

  /// Errors of the masses are not known, and told as none. With a softcap the second order term is
  /// left out.
  void attend(const QueryBlock& queries, std::span<const std::span<const std::int64_t>> taken,
              std::span<const float> ceilings, float scale, float softcap,
              const TailParts& out) const override;

  std::int64_t memory() const override {
    return static_cast<std::int64_t>(sizeof *this) + summaries_.memory();
  }

 private:
  struct Workspace;
  void attend_one(const float* query, PositionRange allowed, std::span<const std::int64_t> taken,
                  float ceiling, float scale, float softcap, Workspace& workspace,
                  const TailParts& out) const;
  void find_removed(PositionRange allowed, std::span<const std::int64_t> taken,
                    Workspace& workspace) const;

  RowsView rows_;
  Grouping grouping_;
  bool second_order_;
  RowSummaries summaries_;
};

/// IndexFactory::transfer_tail of such a tail.
std::unique_ptr<RowTail> transfer_summaries(RowTail* tail, const RowsView& rows,
                                            const Grouping& grouping, bool second_order,
                                            Archive& archive);

/// "pages:size=16", a tail alone: pages of consecutive rows.
/// spec: the whole string; options: what follows "pages:". Throws InvalidArgument.
std::shared_ptr<const IndexFactory> pages_factory(std::string_view spec, std::string_view options);

}  // namespace topkv
