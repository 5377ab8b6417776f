// A tail made of codes: scores of all keys by the codes of an index (codes_index.h), values by one
// bit for each of their main axes (value_codes.h), or all by their mean.
#pragma once

#include <cstdint>
#include <span>
#include <stop_token>
#include <vector>

#include "index/codes/code_sums.h"
#include "index/codes/codes_index.h"
#include "index/codes/shared_error.h"
#include "index/codes/value_codes.h"
#include "index/common/row_tail.h"
#include "src/core/memory/huge_vector.h"

namespace topkv {

class CodeTail final : public RowTail {
 public:
  /// index: over the rows' keys; it and the rows outlive this. bits: of a value's code; 0: none is
  /// coded, and the mean of all rows' values is what those in the tail add. encoder: codes them;
  /// null: the host's threads do. Throws InvalidArgument when a value is not finite, Stopped when
  /// that is requested.
  CodeTail(const CodesIndex& index, const RowsView& rows, std::int64_t bits,
           const std::stop_token& stop, CodeEncoder* encoder = nullptr);

  /// That fields() is to read.
  CodeTail(const CodesIndex& index, const RowsView& rows) : index_(index), rows_(rows) {}
  /// For a file; bits: as above.
  void fields(std::int64_t bits, Archive& archive);

  /// Rows whose keys codes stand for badly (CodesIndex::rare) are attended as they are; of others
  /// the mass is estimated (ScoreEstimate).
  void attend(const QueryBlock& queries, std::span<const std::span<const std::int64_t>> taken,
              std::span<const float> ceilings, float scale, float softcap,
              const TailParts& out) const override;

  std::int64_t memory() const override;
  std::span<const std::int64_t> rare_in(const PositionRange& range) const override {
    return index_.rare_in(range);
  }
  const CodeTail* code_tail() const override { return this; }

  const ValueCoder& coder() const { return coder_; }
  const std::uint8_t* codes() const { return codes_.data(); }

  /// Returns whether shared errors are known. They are not in tails of files of 0.1.0.
  bool knows_shared_error() const { return shared_.known(); }
  /// Returns SharedError::form.
  std::span<const float> shared_form() const { return shared_.form(); }
  /// Returns the factor that makes the unit of SharedError::squared of the scale of scores.
  double shared_unit() const;
  /// Writes the squared error of each query's estimate that the errors of many rows share
  /// (SharedError). queries: [squares.size(), dim]. scale: of scores.
  void shared_errors(const float* queries, float scale, std::span<float> squares) const;

 private:
  struct Pass;
  struct Rare;
  void attend_some(const QueryBlock& queries, std::span<const std::span<const std::int64_t>> taken,
                   std::span<const float> ceilings, float scale, float softcap,
                   const TailParts& out) const;
  void sum_codes(const Pass& pass, PositionRange piece, std::span<CodeSums> sums) const;
  void attend_rare(const Pass& pass, PositionRange range, std::int64_t query, Rare& rare) const;

  const CodesIndex& index_;
  RowsView rows_;
  ValueCoder coder_;
  HugeVector<std::uint8_t> codes_;
  SharedError shared_;
};

}  // namespace topkv
