// Attention on a device over rows that stay in host memory: what prefill and sessions ask of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/attention/block_attention.h"
#include "topkv/attention.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

class RowStore;

/// What the tokens of each layer may attend: [layers].
using PrefillVisibility = std::vector<CausalWindow>;

/// Attention of a prefill, chunk by chunk and layer by layer. One thread at a time.
class PrefillAttention {
 public:
  virtual ~PrefillAttention() = default;

  /// Takes q, k, v (post-RoPE, float32, device memory) of the next tokens of a layer, at most the
  /// chunk it was made for: rows go to the store, and attention over all that each token may see to
  /// out. q, out: [tokens, q_heads, head_dim]; k, v: [tokens, kv_heads, head_dim].
  /// On CUDA the rows may arrive later, and values that cannot be stored are reported by a later
  /// call or by finish.
  virtual void attend(std::int64_t layer, const float* q, const float* k, const float* v,
                      std::int64_t tokens, float* out) = 0;

  /// Waits until the rows of all attended tokens are in the store. Throws InvalidArgument when a
  /// value of K or V is not finite (naming layer, head and position).
  virtual void finish() = 0;

  /// Rows of the layer that are in the store for good; for indexing beside the prefill. Safe from
  /// another thread.
  virtual std::int64_t arrived(std::int64_t layer) const = 0;
};

/// What a session needs of a device.
struct SessionShape {
  AttentionShape attention;
  std::int64_t window = 1024;
  std::int64_t sinks = 4;
  std::int64_t dense_layers = 0;
  std::int64_t max_tokens = 256;   ///< of one call; more are taken in pieces by the session
  std::int64_t fetched_rows = 0;   ///< most rows that one token's queries of one layer fetch
};

/// Seconds of device work of one session, summed; only measured when profiling.
struct DeviceTimes {
  double copy = 0;
  double attend = 0;
  double merge = 0;
};

/// Rows that each query of one token attends, gathered into pinned host memory piece by piece.
/// Lists: query heads, or KV heads when the heads of a group share their rows.
struct FetchPiece {
  std::int64_t list = 0;   ///< which list
  std::int64_t count = 0;  ///< rows
  std::byte* keys = nullptr;    ///< [count, head_dim], to be filled by the caller
  std::byte* values = nullptr;  ///< [count, head_dim]
};

/// The device's side of a session: the resident window and sinks, and the merge. One thread at a
/// time. Positions are those of the session: the context's rows first.
class SessionAttention {
 public:
  virtual ~SessionAttention() = default;

  /// Host copies of what begin was given; valid until the next begin.
  struct Step {
    const float* q = nullptr;  ///< [tokens, q_heads, head_dim]
    TensorView k, v;           ///< bf16 [kv_heads, tokens, head_dim]
  };

  /// Loads the sinks and the last rows of a layer: rows(kv_head) of positions [0, count).
  virtual void load(std::int64_t layer, std::span<const RowsView> rows) = 0;

  /// Takes q, k, v (device memory) of tokens at position `first` and on, begins the exact part over
  /// sinks, window and these tokens, and waits for the host copies. stream: a cudaStream_t that
  /// made q, k and v and will use out; null: the device's own.
  virtual Step begin(std::int64_t layer, const float* q, const float* k, const float* v,
                     std::int64_t tokens, std::int64_t first, void* stream) = 0;

  /// Dense layers: the exact part also takes the rows [0, count) of these views, all of which lie
  /// before the resident window. REQUIRES: count <= first of the window.
  virtual void attend_all(std::int64_t layer, std::span<const RowsView> rows) = 0;

  /// First position that the resident window of a layer holds before tokens at `first`.
  virtual std::int64_t window_begin(std::int64_t layer, std::int64_t first) const = 0;

  /// Room for one list's rows. REQUIRES: tokens of this step == 1.
  virtual FetchPiece stage(std::int64_t list, std::int64_t count) = 0;
  /// The piece is filled: begins its copy and its attention. lists: how many in all.
  virtual void send(const FetchPiece& piece, std::int64_t lists) = 0;

  /// Merges a partial computed on the host ([tokens x q_heads] heads; empty: heads == 0) and all
  /// that was sent into the exact part, and writes out [tokens, q_heads, head_dim] (device memory).
  virtual void finish(std::int64_t layer, PartialView retrieved, float* out) = 0;

  virtual DeviceTimes times() = 0;
};

}  // namespace topkv
