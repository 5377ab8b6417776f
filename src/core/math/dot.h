// Inner products of float32 queries with stored keys: the inner loop of exact search, of graph
// search and of attention over rows. Compiled for every x86 level and chosen at run time
// (Highway). Products and sums are float32; a key element is widened exactly.
#pragma once

#include <cstdint>

#include "topkv/view.h"

namespace topkv {

/// Query · key at a position.
float dot(const float* query, const KeyView& keys, std::int64_t position);

/// Key · key, those at two positions.
float dot_stored(const KeyView& keys, std::int64_t a, std::int64_t b);

/// scores[q * scores_stride + r] = query q · key r, for all keys of the view.
/// queries: [query_count, dim], contiguous. The result for a pair does not depend on what else is
/// in the block.
void dot_block(const float* queries, std::int64_t query_count, const KeyView& keys, float* scores,
               std::int64_t scores_stride);

/// The same for the keys at positions[r], r below key_count.
void dot_gather(const float* queries, std::int64_t query_count, const KeyView& keys,
                const std::int64_t* positions, std::int64_t key_count, float* scores,
                std::int64_t scores_stride);

}  // namespace topkv
