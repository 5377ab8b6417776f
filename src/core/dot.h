// Inner products of float32 queries with stored keys: the inner loop of exact search, of graph
// search and of attention over rows. Compiled for every x86 level and chosen at run time
// (Highway). Products and sums are float32; a key element is widened exactly.
#pragma once

#include <cstddef>
#include <cstdint>

#include "topkv/types.h"

namespace topkv {

/// Query · key, one of each.
float dot(const float* query, const std::byte* key, DType dtype, std::int64_t dim);

/// Key · key, both stored.
float dot_stored(const std::byte* a, const std::byte* b, DType dtype, std::int64_t dim);

/// scores[q * scores_stride + r] = query q · key r, for consecutive keys.
/// queries: [query_count, dim], contiguous. The result for a pair does not depend on what else is
/// in the block.
void dot_block(const float* queries, std::int64_t query_count, std::int64_t dim,
               const std::byte* keys, DType dtype, std::int64_t key_stride_bytes,
               std::int64_t key_count, float* scores, std::int64_t scores_stride);

/// The same for the keys at keys + positions[r] * key_stride_bytes.
void dot_gather(const float* queries, std::int64_t query_count, std::int64_t dim,
                const std::byte* keys, DType dtype, std::int64_t key_stride_bytes,
                const std::int64_t* positions, std::int64_t key_count, float* scores,
                std::int64_t scores_stride);

}  // namespace topkv
