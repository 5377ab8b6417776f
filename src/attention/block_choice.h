// The choice of earlier keys in a sparse prefill. Blocks of consecutive queries attend blocks of
// consecutive keys: those at the begin of the text, those just before the queries, and those in
// between that have most of the queries' attention.
//
// A block of queries is the tokens of query_block consecutive positions, all heads of one KV head.
// A few of its tokens speak for it: the sampled ones. The choice takes two looks:
//
// 1. Every block of keys is scored by its mean key. The blocks with the largest share of the
//    sampled queries' softmax over these scores remain, `candidate_factor` times as many as may be
//    chosen.
// 2. The sampled queries meet every key of the blocks that remain. A block's mass is its mean share
//    of their attention. Blocks are chosen by falling mass, until enough mass is met.
//
// The second look is that of block-sparse prefills by sampled queries (MInference, Jiang et al.
// 2024, arXiv 2407.02490, section 3.2, samples the last queries); the first makes it cheap.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/attention/block_attention.h"
#include "src/attention/block_budget.h"
#include "src/attention/query_view.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

/// The blocks of keys that a block of queries attends always.
struct ForcedBlocks {
  std::int64_t sinks = 0;  ///< blocks before this number
  std::int64_t local = 0;  ///< blocks from this number on, at least `sinks`

  /// Of tokens from position `first` on that always attend the first `sinks` tokens and the last
  /// `window`.
  ForcedBlocks(std::int64_t first, std::int64_t window, std::int64_t sinks);

  /// The blocks between, among which there is a choice.
  std::int64_t candidates() const { return local - sinks; }
};

/// Returns the tokens that choose for a block of `tokens` tokens, by number.
std::vector<std::int64_t> sampled(std::int64_t tokens);

/// Queries of some tokens, and the positions of the keys that they meet (chunk_passes.h). Borders
/// between passes are multiples of key_block.
struct PassQueries {
  TokenQueries queries;
  PositionRange sees;
};

/// The queries of one block and KV head.
struct BlockQueries {
  std::span<const PassQueries> passes;  ///< of the same tokens; every earlier key is in one
  std::int64_t head = 0;                ///< the first query head
  std::int64_t group = 1;               ///< query heads
  float scale = 1;
  float softcap = 0;

  std::int64_t first() const { return passes[0].queries.first; }
  std::int64_t tokens() const { return passes[0].queries.tokens; }
};

/// What a block of queries attends.
struct ChosenBlocks {
  std::vector<std::int64_t> blocks;  ///< of keys, forced ones included; ascending
  /// The share of the sampled queries' attention, an estimate; exact with BlockBudget::measure.
  double mass = 1;
};

/// Chooses for one block of queries. rows: from position 0 to the block's last token at least.
/// means: the mean key of each whole block before the first token, [blocks, head_dim].
/// Safe from many threads.
ChosenBlocks choose_blocks(const BlockQueries& queries, const ForcedBlocks& forced,
                           const BlockBudget& budget, const RowSpan& rows,
                           std::span<const float> means);

/// Appends to `means` the mean keys of the whole blocks before position `end` that it does not
/// have. rows: from position 0 to `end` at least. Split over threads by block. When it throws,
/// `means` is as it was.
void extend_means(const RowSpan& rows, std::int64_t end, std::vector<float>& means);

}  // namespace topkv
