// Figures of a tail: how far a head's output may be from dense attention, by the noise that the
// tail reports of itself.
#pragma once

#include "index/common/row_tail.h"
#include "topkv/attention.h"
#include "topkv/session.h"

namespace topkv {

/// A tail's part in the output of one head.
struct TailShare {
  double share = 0;    ///< the tail's share of all softmax weights
  double squared = 0;  ///< the expected squared error of the output
  double size = 0;     ///< the squared length of the output
};

/// Returns a tail's part in the output of one head. all: every partial of the head, merged. tail:
/// the estimate among them.
///
/// Let p be the estimate's share of all weights, o the merged output and t the estimate's output.
/// The expected squared error is
///
///   p² (noise.weights (noise.spread + |t - o|²) + noise.values)
TailShare tail_share(PartialView all, PartialView tail, const TailNoise& noise);

/// Merges another estimate of one head, over other rows, into `tail` and `noise`.
void join_tails(PartialView tail, TailNoise& noise, PartialView other, const TailNoise& of_other);

/// Adds one head's figures to `to`.
void add_head(PartialView all, PartialView tail, const TailNoise& noise, TailFigures& to);

}  // namespace topkv
