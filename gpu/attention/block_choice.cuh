// Parts of the kernels of a sparse prefill: the pieces of a step, and their memory.
#pragma once

#include <cstdint>

#include "gpu/attention/attention_kernel.cuh"
#include "src/attention/block_budget.h"

namespace topkv::gpu {

inline constexpr int block_keys = static_cast<int>(key_block);
inline constexpr int block_tokens = static_cast<int>(query_block);

/// The arguments of the kernels. A piece is the tokens of a step in one block of queries. Arrays
/// are per piece and KV head, number piece * kv_heads + kv_head.
struct ChoiceTask {
  const __nv_bfloat16* queries;  ///< [tokens, q_heads, head_dim], of each form (chunk_passes.h)
  std::int64_t form_stride;      ///< elements from one form to the next
  const __nv_bfloat16* keys;     ///< [kv_heads, head_stride]
  std::int64_t head_stride;
  __nv_bfloat16* means;  ///< of keys of whole blocks, [kv_heads, most_blocks, head_dim]
  float* shares;         ///< of candidates in the first look, [.., sample_tiles, most_blocks]
  float* mean_lse;       ///< of scores of means, [.., samples]
  int* entries;       ///< blocks that the second look meets: forced, then kept; [.., most_entries]
  int* entry_counts;  ///< [.., 2]: forced entries, all entries
  float* entry_lse;   ///< of a block's keys, [.., samples, most_entries]
  float* entry_mean;  ///< the score of its mean key, likewise
  int* blocks;        ///< to attend, ascending: [.., most_listed]
  int* block_counts;
  std::int64_t most_blocks;
  int most_entries, most_listed;
  int samples;       ///< room for n samples
  int tile_samples;  ///< samples of a block of threads
  int sample_tiles;  ///< blocks of threads that share the samples
  int chunk_blocks;  ///< blocks of keys in a chunk of dual chunk attention; 0: no chunks
  bool has_far;      ///< keys before the chunk before a token's own meet a form of their own
  int first;         ///< position of token 0
  int tokens, q_heads, kv_heads, group;
  int window, sinks;
  int most, least;  ///< blocks
  int without_choice;
  double mass;
  float scale, scale_log2, cap, cap_rate;
};

struct BlockRange {
  int begin, end;
};

/// One piece: its tokens by number, and its blocks of keys.
struct Piece {
  int begin, end;  ///< tokens
  int first;       ///< position of token `begin`
  int sinks;       ///< blocks before this number are attended always
  int local;       ///< and blocks from this number on
  int last;        ///< the block of the last token
  int own;         ///< the first block of the tokens' chunk
  int next;        ///< the first block that meets q_next

  __device__ __forceinline__ Piece(const ChoiceTask& task, int number) {
    const int lead = task.first % block_tokens;
    begin = max(0, number * block_tokens - lead);
    end = min(task.tokens, (number + 1) * block_tokens - lead);
    first = task.first + begin;
    sinks = (task.sinks + block_keys - 1) / block_keys;
    local = max(sinks, max(0, first - task.window + 1) / block_keys);
    last = (task.first + end - 1) / block_keys;
    own = task.chunk_blocks > 0 ? first / block_keys / task.chunk_blocks * task.chunk_blocks : 0;
    next = task.has_far ? max(0, own - task.chunk_blocks) : 0;
  }
  /// The blocks that meet a form of the queries, by its number.
  __device__ __forceinline__ BlockRange met_by(int form) const {
    return {form == 0 ? own : form == 1 ? next : 0, form == 0 ? last + 1 : form == 1 ? own : next};
  }
  __device__ __forceinline__ int form_of(int block) const {
    return block >= own ? 0 : block >= next ? 1 : 2;
  }
  __device__ __forceinline__ int candidates() const { return local - sinks; }
  __device__ __forceinline__ bool chooses(const ChoiceTask& task) const {
    return candidates() > task.without_choice;
  }
  __device__ __forceinline__ int sampled() const {
    return min(end - begin, static_cast<int>(sampled_tokens));
  }
  /// The token of sample number i, by number.
  __device__ __forceinline__ int sample(int i) const {
    const int count = end - begin;
    return begin + (count <= sampled_tokens
                        ? i
                        : (2 * i + 1) * count / (2 * static_cast<int>(sampled_tokens)));
  }
};

/// The number of blocks of an ascending list that are below `block`.
__device__ __forceinline__ int count_below(const int* blocks, int count, int block) {
  int low = 0;
  while (low < count) {
    const int middle = (low + count) / 2;
    if (blocks[middle] < block) {
      low = middle + 1;
    } else {
      count = middle;
    }
  }
  return low;
}

/// Rows of a piece, and the blocks that they attend, ascending. There may be no rows.
struct ListedRows {
  RowTile rows;
  const int* blocks;
  int count;
};

/// What a block of threads attends in a grid of (row tiles of pieces, kv_heads): those blocks of
/// the list of its piece that meet a form of the queries.
template <int tile_rows>
__device__ __forceinline__ ListedRows listed_rows(const AttentionTask& task,
                                                  const ChoiceTask& choice, int first_piece,
                                                  int form) {
  const int tiles_of_piece = (block_tokens * task.group + tile_rows - 1) / tile_rows;
  const int number = static_cast<int>(blockIdx.x) / tiles_of_piece;
  const Piece piece(choice, first_piece + number);
  const int first_row =
      piece.begin * task.group + static_cast<int>(blockIdx.x) % tiles_of_piece * tile_rows;
  ListedRows of;
  of.rows.token = first_row / task.group;
  of.rows.head = first_row % task.group;
  of.rows.kv_head = static_cast<int>(blockIdx.y);
  of.rows.rows = min(piece.end * task.group - first_row, tile_rows);
  of.count = 0;
  if (of.rows.rows <= 0) return of;
  const std::int64_t at = static_cast<std::int64_t>(number) * choice.kv_heads + of.rows.kv_head;
  of.blocks = choice.blocks + at * choice.most_listed;
  of.count = choice.block_counts[at];
  if (piece.own > 0) {
    const BlockRange met = piece.met_by(form);
    const int begin = count_below(of.blocks, of.count, met.begin);
    of.count = count_below(of.blocks, of.count, met.end) - begin;
    of.blocks += begin;
  } else if (form > 0) {
    of.count = 0;
  }
  // Blocks behind the last row's own go: those come last in the list.
  const int end = bounds_of(task, of.rows).end_max;
  while (of.count > 0 && of.blocks[of.count - 1] * block_keys >= end) --of.count;
  return of;
}

}  // namespace topkv::gpu
