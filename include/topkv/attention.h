// Attention as a merge of partials.
//
// A *partial* is softmax attention over a subset of the keys. For each query head it has the
// normalised output and the natural log-sum-exp of the scaled scores. Two partials over disjoint
// sets of keys, a and b, merge into the partial over their union, exactly:
//
//     lse = log(exp(lse_a) + exp(lse_b)),   out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b
//
// The merge is associative and commutative up to rounding. The empty partial, with out 0 and lse
// -inf, is its identity. Sinks, window, retrieved rows and other ranks each contribute a partial,
// so that one softmax is taken over all of their keys.
//
// The formula comes from FlashAttention's split softmax. Algorithm 1 of Synk et al. 2025 adds two
// separate softmaxes instead, which is not attention over the union.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "topkv/view.h"

namespace topkv {

/// The log-sum-exp of no keys: minus infinity.
inline constexpr float empty_lse = -std::numeric_limits<float>::infinity();

/// A partial that owns its memory. It starts empty.
class Partial {
 public:
  Partial() = default;
  Partial(std::int64_t heads, std::int64_t head_dim) { reset(heads, head_dim); }

  /// Becomes the empty partial of this shape. Allocates memory only when it grows.
  void reset(std::int64_t heads, std::int64_t head_dim);

  PartialView view() { return {out_.data(), lse_.data(), heads_, head_dim_}; }
  std::span<const float> out() const { return out_; }
  std::span<const float> lse() const { return lse_; }

 private:
  std::int64_t heads_ = 0;
  std::int64_t head_dim_ = 0;
  std::vector<float> out_;
  std::vector<float> lse_;
};

/// Merges `other` into `into`, head by head. REQUIRES: the two key sets are disjoint. Throws
/// InvalidArgument when the shapes differ.
void merge(PartialView into, PartialView other);

/// Attends chosen rows: overwrites `out` with the partial of the queries over them.
///
/// - queries: [heads, head_dim], float32, contiguous. Every head attends the same rows.
/// - positions: the positions of the rows, each below rows.count(), in any order.
/// - scale: scores are scale * q·k.
/// - softcap: above 0, a score s becomes softcap * tanh(s / softcap) (AttentionShape::softcap).
///
/// Safe from many threads.
void attend_rows(const float* queries, const RowsView& rows,
                 std::span<const std::int64_t> positions, float scale, PartialView out,
                 float softcap = 0.0F);

/// One layer's tensors of consecutive tokens, in a prefill (ContextBuilder::attend) and in decoding
/// (Session::attend). K and V of the tokens join the rows. Each token attends the tokens before it
/// and itself.
///
/// All tensors are float32 and contiguous, in the memory of the device that the builder or session
/// is on. k and q are post-RoPE.
///
/// `out` may be q itself, which is then overwritten. No other tensor that is written may overlap
/// one that is read. After a call that throws, the contents of out and lse are undefined.
///
/// Chunks: with AttentionShape::chunk_len above 0, a token at position p is in chunk p / chunk_len.
/// It uses q for keys of that chunk, q_next for keys of the chunk before, and q_far for keys of all
/// chunks before that. Rows are stored as they are given: RoPE turns k by p % chunk_len.
///
/// Sharding: a prefill may be sharded by sequence. Each rank is given all queries, and K and V of
/// its own tokens only; the ranks' (out, lse) are then merged. Layers with a sliding window, layers
/// with a recurrent state, the window prefill and chunks do not allow this. A session's step has K
/// and V of all its tokens, or of none.
///
/// Shared rows: a layer that attends the rows of an earlier layer (AttentionShape::row_layer) takes
/// its step after that layer's step. The step has the same tokens, kv_first and kv_tokens, and null
/// k and v.
///
/// Trained indexers: a layer that chooses (AttentionShape::has_index_keys) takes index queries and
/// index keys of its tokens. A layer that attends the choice of an earlier layer takes its step
/// after that layer's step, for the same tokens, with null index tensors. A step of either layer
/// has K and V of all its tokens.
struct AttentionStep {
  std::int64_t layer = 0;
  std::int64_t tokens = 1;
  const float* q = nullptr;  ///< [tokens, q_heads, head_dim]
  /// [kv_tokens, kv_heads, head_dim]. Null in a layer without rows of its own; may be null when
  /// kv_tokens is 0.
  const float* k = nullptr;
  /// [kv_tokens, kv_heads, head_dim]. Null in a layer without rows of its own, and when keys are
  /// values (AttentionShape::keys_are_values); may be null when kv_tokens is 0.
  const float* v = nullptr;
  float* out = nullptr;  ///< [tokens, q_heads, head_dim]
  float* lse = nullptr;  ///< [tokens, q_heads], log-sum-exp of the scores; null: not wanted
  /// The number of the first token that k and v belong to, from 0. Tokens before it attend none of
  /// these rows.
  std::int64_t kv_first = 0;
  /// The number of tokens that k and v belong to, from kv_first on. -1: all tokens from kv_first
  /// on. 0: the step adds no rows.
  std::int64_t kv_tokens = -1;
  /// On a CUDA device, the cudaStream_t that makes q, k and v and will use out and lse. Null: the
  /// device's own stream. Ignored on the host.
  void* stream = nullptr;
  /// With chunks, the query for keys of the chunk before a token's own: laid out like q, and never
  /// written. Null if no token of the step has such a chunk. If q_next and q_far are one pointer,
  /// one pass meets the keys of both kinds, which is faster.
  const float* q_next = nullptr;
  /// With chunks, the query for keys of all chunks before q_next's: laid out like q, and never
  /// written. Null if no token of the step has such a chunk.
  const float* q_far = nullptr;

  /// With a trained indexer, the index queries of the tokens: [tokens, indexer.heads, indexer.dim].
  /// Null in a layer that does not choose (AttentionShape::has_index_keys).
  const float* index_q = nullptr;
  /// With a trained indexer, the index keys of the groups that the step's tokens complete: [keys,
  /// indexer.dim], with IndexerShape::completed(first, tokens) keys. With tokens_per_key 1 that is
  /// one for each token. May be null if there is none; null in a layer that does not choose.
  ///
  /// In a step of several sessions, the keys of the first session come first, then the next ones.
  const float* index_k = nullptr;
  /// With a trained indexer, the weights of the index queries: [tokens, indexer.heads]. Null: all
  /// weights are 1.
  const float* index_weights = nullptr;

  /// Returns the number of tokens that k and v belong to, with the -1 of kv_tokens resolved.
  std::int64_t kv_count() const { return kv_tokens < 0 ? tokens - kv_first : kv_tokens; }
};

}  // namespace topkv
