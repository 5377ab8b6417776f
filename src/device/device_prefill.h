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
class DevicePrefill {
 public:
  virtual ~DevicePrefill() = default;

  /// Takes the step's tensors (device memory) of the next tokens of a layer, at most the chunk it
  /// was made for: rows go to the store, and attention over all that each token may see to out.
  /// On CUDA the rows may arrive later, and values that cannot be stored are reported by a later
  /// call or by finish. When it throws, the layer is as it was before, unless lost().
  /// REQUIRES: layers in turn, layer 0 first.
  virtual void attend(const AttentionStep& step) = 0;

  /// Waits until the rows of all attended tokens are in the store. Throws InvalidArgument when a
  /// value of K or V is not finite (naming layer, head and position).
  virtual void finish() = 0;

  /// Rows of the layer that are in the store for good; for indexing beside the prefill. Safe from
  /// another thread.
  virtual std::int64_t arrived(std::int64_t layer) const = 0;

  /// Rows that were taken by calls that returned are gone: a value of theirs could not be stored,
  /// or the device no longer works. Never on the host.
  virtual bool lost() const { return false; }
};

/// What a session needs of a device.
struct SessionShape {
  AttentionShape attention;
  std::int64_t window = 1024;
  std::int64_t sinks = 4;
  std::int64_t dense_layers = 0;
  std::int64_t max_tokens = 256;  ///< of one begin
};

/// The device's side of a session: the resident window and sinks, and the merge. One thread at a
/// time. Positions are those of the session: the context's rows come first.
///
/// A step: begin, attend_all for dense layers, finish. Allocates nothing after it was made.
class DeviceSession {
 public:
  virtual ~DeviceSession() = default;

  /// Host copies of what begin was given; valid until the next begin.
  struct Step {
    const float* q = nullptr;  ///< [tokens, q_heads, head_dim]
    TensorView k, v;           ///< float32 [tokens, kv_heads, head_dim]
  };

  /// Loads those rows that are sinks or in the window of a token at position `end`. rows: per KV
  /// head, of positions first and on, bf16.
  virtual void load(std::int64_t layer, std::span<const RowsView> rows, std::int64_t first,
                    std::int64_t end) = 0;

  /// Takes q, k, v (device memory, float32) of tokens at position `first` and on, begins the exact
  /// part over sinks, window and these tokens, and waits for the host copies. Without K and V
  /// (kv_count 0) the window keeps its rows, and the copies' k and v have no tokens.
  virtual Step begin(const AttentionStep& step, std::int64_t first) = 0;

  /// First position that the resident window of a layer still holds, for tokens at `first`.
  virtual std::int64_t window_begin(std::int64_t layer, std::int64_t first) const = 0;

  /// Dense layers: the exact part also takes all rows of these views (per KV head), which lie
  /// before the resident window.
  virtual void attend_all(std::int64_t layer, std::span<const RowsView> rows) = 0;

  /// Merges the partial of the rows found, in host memory ([tokens x q_heads] heads; heads == 0:
  /// none), into the exact part, and writes the step's out and, when wanted, lse.
  virtual void finish(const AttentionStep& step, PartialView found) = 0;
};

}  // namespace topkv
