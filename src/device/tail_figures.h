// How far a head's output may be from dense attention, from what its tail says of itself.
#pragma once

#include "index/row_tail.h"
#include "topkv/attention.h"
#include "topkv/session.h"

namespace topkv {

/// What a tail adds to one head.
struct TailShare {
  double share = 0;    ///< of all weights
  double squared = 0;  ///< the expected squared error of the output
  double size = 0;     ///< the output's square
};

/// all: every partial of the head, merged; tail: the estimate among them. With p the estimate's
/// share of all weights and o, t what the two give, the expected squared error is
///
///   p² (noise.weights (noise.spread + |t - o|²) + noise.values)
TailShare tail_share(PartialView all, PartialView tail, const TailNoise& noise);

/// One head's estimate and another of it, of other rows, become one.
void join_tails(PartialView tail, TailNoise& noise, PartialView other, const TailNoise& of_other);

/// Adds one head.
void add_head(PartialView all, PartialView tail, const TailNoise& noise, TailFigures& to);

}  // namespace topkv
