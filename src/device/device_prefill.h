// The device's side of a prefill: attention of each chunk, over rows that stay in host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "src/attention/block_attention.h"
#include "src/attention/block_choice.h"
#include "topkv/attention.h"
#include "topkv/context.h"

namespace topkv {

class IndexerAttention;
class RowStore;

/// The earlier tokens that a token of one layer may attend: those of a window, and keys that blocks
/// of tokens choose beside it.
struct LayerVisibility {
  CausalWindow window;
  BlockBudget blocks;

  LayerVisibility(CausalWindow attended = {},  // NOLINT(google-explicit-constructor): most choose
                  BlockBudget chosen = {})     // nothing
      : window(attended), blocks(chosen) {}

  /// Returns whether tokens choose keys.
  bool chooses() const { return blocks.most > 0; }
};

/// The earlier tokens that a token of each layer may attend: [layers]. prefill_visibility makes it
/// for a device, and refuses what the device does not choose.
using PrefillVisibility = std::vector<LayerVisibility>;

/// The rows of a prefill. They outlive it.
struct PrefillRows {
  RowStore& store;                   ///< takes the new ones
  const RowStore* before = nullptr;  ///< frozen rows of the tokens before the store's; null: none
  /// The most tokens that all rows may come to be of; 0: as many as the store has room for behind
  /// those before. A device's memory depends on it.
  std::int64_t tokens = 0;
  /// What attends layers with a trained indexer, and keeps their choices; it outlives the prefill.
  /// Null: the prefill has its own.
  IndexerAttention* indexer = nullptr;
};

/// Returns the share of tokens from position `first` on that attend all earlier ones and
/// themselves.
inline PrefillShare dense_share(std::int64_t kv_heads, std::int64_t first, std::int64_t tokens) {
  const auto count = static_cast<double>(tokens);
  const auto heads = static_cast<double>(kv_heads);
  const double keys = heads * count * (static_cast<double>(first) + (count + 1) / 2);
  return {tokens * kv_heads, heads * count, keys, keys};
}

/// Attention of a prefill, chunk by chunk and layer by layer. One thread at a time.
class DevicePrefill {
 public:
  virtual ~DevicePrefill() = default;

  /// Attends the next tokens of a layer, at most the chunk that this was made for. The tensors are
  /// in the device's memory. K and V go to the store; the attention of each token over all rows
  /// that it may see goes to out. A layer that attends the rows of another layer has no K and V.
  ///
  /// On CUDA the rows may arrive later; the store's size counts them once they are there. A later
  /// call, or finish, then reports values that cannot be stored. With rows before the store's they
  /// are there on return. After an exception the layer is as it was before, unless lost().
  ///
  /// REQUIRES: layers of attention in turn, the first of them first; with rows before the store's a
  /// layer may come again, or another first. Room for the rows in the store.
  virtual void attend(const AttentionStep& step) = 0;

  /// Waits until the rows of all attended tokens are in the store. Throws InvalidArgument when a
  /// value of K or V is not finite; the message names layer, head and position.
  virtual void finish() = 0;

  /// Returns what the tokens of a layer in which tokens choose keys attended so far, in the calls
  /// of this object. Waits for it. Nothing for other layers.
  virtual PrefillShare share(std::int64_t /*layer*/) { return {}; }

  /// Returns whether rows of earlier calls are lost: one of their values could not be stored, or
  /// the device no longer works. Never on the host.
  virtual bool lost() const { return false; }
};

}  // namespace topkv
