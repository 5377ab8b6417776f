// How far a head's output may be from dense attention, from what its tail says of itself.
#pragma once

#include "index/row_tail.h"
#include "topkv/attention.h"
#include "topkv/session.h"

namespace topkv {

/// Adds one head: all: every partial of it, merged; tail: the estimate among them. With p the
/// estimate's share of all weights and o, t what the two give, the expected squared error is
///
///   p² (noise.weights (noise.spread + |t - o|²) + noise.values)
void add_head(PartialView all, PartialView tail, const TailNoise& noise, TailFigures& to);

}  // namespace topkv
