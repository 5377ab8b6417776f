// A random sample of a query head's rows, large enough for RetrievalOptions::guarantee.
//
// The rule is vAttention's (Desai et al. 2025, arXiv:2510.05688). Some rows are known: they are
// attended in any case. The attention output is N / D, where D is the sum of all rows' softmax
// weights and N the sum of weighted values. A uniform sample of b of the n other rows, each with
// the weight of n / b rows, gives unbiased estimates of both sums. By the central limit theorem,
// the relative error of such a sum S exceeds e with probability p at most if
//
//     b >= (z n s / (e |S|))²
//
// where z is the two-sided bound of the normal distribution for p, and s² the variance of a row's
// term in the sum: for N, the trace of the covariance matrix. With p = delta / 2 and
// e = epsilon / (2 + epsilon) for both sums, the error of N / D is at most epsilon with probability
// 1 - delta, because (1 + e) / (1 - e) - 1 = epsilon.
//
// Differences from the paper:
// - Rows are drawn without repetition. The sample that is needed is smaller by the factor
//   1 / (1 + b / n), and with all rows the result is exact.
// - The rows of the first sample, from which s and S are estimated, become known rows. The second
//   sample is drawn from all other rows. The estimates are therefore unbiased although the first
//   sample decides the size of the second.
// - s and S are estimated again from both samples, and the second one grows until it is as large as
//   they ask for. A first sample that missed the few heavy rows would make it too small. The second
//   one is likelier to end when it shows few heavy rows. This is a bias, and its size is not known.
// - The expected square of the sampling error is taken off the estimate of |N|².
#pragma once

#include <cstdint>
#include <span>

#include "topkv/attention.h"
#include "topkv/session.h"
#include "topkv/types.h"

namespace topkv {

/// The query of one head, and the rows that it may sample.
struct SampledQuery {
  const float* query = nullptr;              ///< [dim]
  RowsView rows = {};                        ///< of the head's KV head
  PositionRange range = {};                  ///< a range of these rows
  std::span<const std::int64_t> taken = {};  ///< rows of the range that are known, ascending
  std::uint64_t seed = 0;
  float scale = 1;
  float softcap = 0;
};

/// The rows that attend_sample attended.
struct SampledRows {
  std::int64_t count = 0;
  bool all = false;  ///< the rule needed every row of the range; there was at least one
};

/// Estimates the attention over the rows of a range that are not taken, from a sample of them.
/// Overwrites `out`, of one head, with the estimate's partial. known: the partial over all rows of
/// the query that are not in the estimate. Equal arguments give equal results, on any thread.
SampledRows attend_sample(const SampledQuery& of, const Guarantee& bound, PartialView known,
                          PartialView out);

}  // namespace topkv
