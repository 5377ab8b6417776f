// Attention as a merge of partials.
//
// A *partial* is softmax attention over a subset of the keys: for each query head the normalised
// output and the natural-log-sum-exp of its scaled scores. Partials over disjoint key sets merge
// into the partial over their union, exactly:
//
//   lse = log(exp(lse_a) + exp(lse_b)),   out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b
//
// merge is associative and commutative up to rounding; the empty partial (out 0, lse -inf) is its
// identity. Everything that takes part in attention (sinks, window, retrieved rows, other ranks)
// is a source of partials, so one softmax is taken over the union of them all. (The formula is
// that of FlashAttention's split softmax; Synk et al. 2025, algorithm 1, instead adds two separate
// softmaxes, which is not attention over the union.)
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "topkv/view.h"

namespace topkv {

/// The log-sum-exp of no keys.
inline constexpr float empty_lse = -std::numeric_limits<float>::infinity();

/// Where a partial is kept: out [heads, head_dim] and lse [heads], both float32, contiguous.
/// The caller owns the memory. "heads" counts independent queries: query heads, or tokens x heads.
struct PartialView {
  float* out = nullptr;
  float* lse = nullptr;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;

  /// Heads first to first + count - 1.
  PartialView part(std::int64_t first, std::int64_t count = 1) const {
    return {out + first * head_dim, lse + first, count, head_dim};
  }
};

/// An owning partial; starts empty.
class Partial {
 public:
  Partial() = default;
  Partial(std::int64_t heads, std::int64_t head_dim) { reset(heads, head_dim); }

  /// Makes it the empty partial of this shape. Allocates only when it grows.
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

/// Merges `other` into `into`, head by head.
/// REQUIRES: same shape, and the two key sets are disjoint. Throws InvalidArgument on a mismatch.
void merge(PartialView into, PartialView other);

/// The partial of queries [heads, head_dim] (float32, contiguous) over chosen rows.
/// positions: which rows, each below rows.count, in any order; every head attends the same rows.
/// Scores are scale * q·k, capped when softcap > 0 (AttentionShape). Overwrites out. Safe from many
/// threads.
void attend_rows(const float* queries, const RowsView& rows,
                 std::span<const std::int64_t> positions, float scale, PartialView out,
                 float softcap = 0.0F);

/// One layer's tensors of consecutive tokens, in prefill (ContextBuilder::attend) and decoding
/// (Session::attend): K and V of the new tokens join the rows, and each token attends what came
/// before it and itself. All float32, contiguous, in the memory of the builder's or session's
/// device; k and q post-RoPE.
///
/// out may be q itself, which is then overwritten; nothing else that is written may overlap what is
/// read. When a call throws, out and lse hold nothing of use.
///
/// With AttentionShape::chunk_len a token at position p, in chunk p / chunk_len, meets the keys of
/// that chunk with q, those of the chunk before with q_next, and all before that with q_far.
/// Rows keep what they were stored with: k is turned by p % chunk_len.
///
/// A context may be sharded by sequence: each rank is given all queries but the K and V of its own
/// tokens only, and the ranks' (out, lse) are merged. (Not with chunks.)
struct AttentionStep {
  std::int64_t layer = 0;
  std::int64_t tokens = 1;
  const float* q = nullptr;  ///< [tokens, q_heads, head_dim]
  const float* k = nullptr;  ///< [kv_tokens, kv_heads, head_dim]
  const float* v = nullptr;  ///< [kv_tokens, kv_heads, head_dim]
  float* out = nullptr;      ///< [tokens, q_heads, head_dim]
  float* lse = nullptr;      ///< [tokens, q_heads], log-sum-exp of the scores; null: not wanted
  /// Which of the tokens k and v are of: kv_tokens from number kv_first on; -1: all. When 0, k and
  /// v may be null. Tokens before kv_first see none of these rows.
  std::int64_t kv_first = 0;
  std::int64_t kv_tokens = -1;
  /// On a CUDA device, the cudaStream_t that makes q, k and v and will use out and lse; null: the
  /// device's own. Ignored on the host.
  void* stream = nullptr;
  /// With chunks, like q, and not written: what meets the chunk before a token's own, and all
  /// earlier ones. Null where no token of the step has such a chunk. Where both are the same they
  /// meet all of these together, which is faster.
  const float* q_next = nullptr;
  const float* q_far = nullptr;

  std::int64_t kv_count() const { return kv_tokens < 0 ? tokens - kv_first : kv_tokens; }
};

}  // namespace topkv
