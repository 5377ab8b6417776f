// Dual chunk attention's positions (An et al. 2024, arXiv 2402.17463, section 3, whose chunk size s
// is chunk_len here, and whose local window w is local_size; chunk_size is where vLLM's
// DualChunkRotaryEmbedding, with which such models are run, holds queries: the paper's c - 1). A
// query stands at three positions at a time, none of which is further from a key than chunk_size:
//
//   key at p                          p mod chunk_len
//   query at p, for its own chunk     p mod chunk_len: as far away as it is
//   for the chunk before              min(p mod chunk_len + chunk_len, chunk_size): as far away as
//   it
//                                     is where that is at most local_size
//   for all chunks before that        min(2 chunk_len - 1, chunk_size), wherever the query is
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "topkv/model.h"

namespace topkv {

class ChunkPositions {
 public:
  explicit ChunkPositions(const DualChunk& chunks) : chunks_(chunks) {}

  std::int64_t within(std::int64_t position) const { return position % chunks_.chunk_len(); }
  std::int64_t next(std::int64_t position) const {
    return std::min(within(position) + chunks_.chunk_len(), chunks_.chunk_size);
  }
  std::int64_t far() const { return std::min(2 * chunks_.chunk_len() - 1, chunks_.chunk_size); }

  /// Whether next() is far() for all of so many tokens from position `first` on.
  bool next_is_far(std::int64_t first, std::int64_t tokens) const {
    const std::int64_t last = first + tokens - 1;
    const bool one_chunk = first / chunks_.chunk_len() == last / chunks_.chunk_len();
    return next(one_chunk ? first : 0) == far();
  }

  /// On scores, in a text of so many tokens: YaRN's temperature (Peng et al. 2023, section 3.4) as
  /// vLLM has it: on keys, so once and not squared.
  double temperature(std::int64_t tokens) const {
    if (chunks_.original_max_position == 0) return 1;
    const double stretched =
        static_cast<double>(tokens) / static_cast<double>(chunks_.original_max_position);
    return std::max(1.0, 0.1 * std::log(stretched) + 1);
  }

 private:
  const DualChunk& chunks_;
};

}  // namespace topkv
