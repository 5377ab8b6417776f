// Scores of index keys for the index queries of a token (IndexerShape): the inner loop of a trained
// indexer's choice. Compiled for every x86 level and chosen at run time (Highway).
//
// Keys are scored a tile at a time, which lies with one key beside the other: a lane of a vector is
// a key, so that the sum over the elements and over the queries needs no sum over lanes. The score
// of a key is the same in any place of a tile, whatever else is in it.
#pragma once

#include <cstdint>

#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

/// The keys of a tile.
inline constexpr std::int64_t index_key_tile = 48;

/// Writes keys, widened to float32, to columns from `column` on of a tile [dim][index_key_tile].
/// REQUIRES: keys in f32 or bf16, column + keys.count at most index_key_tile.
void put_in_tile(const KeyView& keys, std::int64_t column, float* tile);

/// Writes scores[r], the score of the key in column r of a tile, for all columns. A score that is
/// not a number becomes minus infinity.
///
/// queries: [heads, dim]. weights: [heads]; null: all 1. Products and sums are float32.
void score_tile(const float* queries, const float* weights, std::int64_t heads, std::int64_t dim,
                IndexScore score, const float* tile, float* scores);

}  // namespace topkv
