// Sorts what a scan kept by score, in time that hardly depends on the order it comes in: comparing
// would mispredict at every other comparison.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/core/math/topk.h"

namespace topkv {

/// Working memory of best_first, kept from call to call.
class Ranking {
 public:
  /// The k best of `all`, or all when they are fewer, best first, in the order of ranks_before.
  /// No score may be NaN. The result lives until the next call.
  std::span<const Scored> best_first(std::span<const Scored> all, std::int64_t k);

 private:
  /// Sorts keys_ by its upper 32 bits, stably.
  void sort_by_score();

  std::vector<std::uint64_t> keys_;  // the score, larger ones first, and the place in `all`
  std::vector<std::uint64_t> other_;
  std::vector<Scored> best_;
};

}  // namespace topkv
