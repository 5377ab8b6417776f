// The part of a tail's error that many rows share.
//
// A tail gives Σ p̂ v̂ in place of Σ p v, with p̂ from the keys' codes and v̂ from the values' codes.
// Errors of codes that are independent cancel in a sum over many rows (TailNoise). Errors of keys
// that are correlated with the values do not cancel. To first order in the scores, both sums differ
// by
//
//   scale Cᵀ q,   C = cov(k, v) - cov(k̂, v̂)
//
// over the rows of the context. C has the covariance that codes lose. This is exact if scores and
// values are jointly normal: exp(score) as a weight moves the mean of the values by their
// covariance with the score.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "index/codes/codes_index.h"
#include "index/codes/value_codes.h"
#include "src/core/format/archive.h"
#include "topkv/view.h"

namespace topkv {

/// The quadratic form q ↦ |Cᵀ q|² of one KV head. Const members are safe from many threads.
class SharedError {
 public:
  /// Of fewer rows the form is unknown.
  static constexpr std::int64_t least_rows = 8;

  /// The form is unknown: squares are 0.
  SharedError() = default;

  /// Measures C over a sample of the rows. index: codes of the rows' keys. values: the coder of the
  /// rows' values. check_stop: called now and then; it throws to stop.
  ///
  /// The form is unknown for values whose products are beyond float32, too. The result does not
  /// depend on the number of threads.
  SharedError(const CodesIndex& index, const ValueCoder& values, const RowsView& rows,
              const std::function<void()>& check_stop);

  /// Returns whether the form is known.
  bool known() const { return !form_.empty(); }

  /// Returns the matrix of the form: [dim, dim], symmetric except for rounding, for queries times
  /// the unit of squared(). Empty: the form is unknown.
  std::span<const float> form() const { return form_; }

  /// Writes the squared length of scale Cᵀ q of each query, finite. queries: [squares.size(), dim].
  /// unit: the scale of scores, divided by the scales of the keys' axes and of the values' axes
  /// (CodeAxes::scale). The form is read once for all queries.
  void squared(const float* queries, double unit, std::span<float> squares) const;

  /// Returns the bytes of the form.
  std::int64_t memory() const {
    return static_cast<std::int64_t>(form_.capacity() * sizeof(float));
  }

  /// For a file, of keys of this number of dims. It is the last field of a section. Nothing is
  /// written of an unknown form, as in files of 0.1.0.
  void fields(std::int64_t dim, Archive& archive);

 private:
  std::vector<float> form_;  // [dim, dim], symmetric but for rounding, of scaled keys and values
};

}  // namespace topkv
