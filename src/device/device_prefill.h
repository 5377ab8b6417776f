// Attention of a prefill on a device, over rows that stay in host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "src/attention/block_attention.h"
#include "topkv/attention.h"

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
  /// On CUDA the rows may arrive later, counted by the store's size once they are there, and values
  /// that cannot be stored are reported by a later call or by finish. When it throws, the layer is
  /// as it was before, unless lost().
  /// REQUIRES: layers in turn, layer 0 first.
  virtual void attend(const AttentionStep& step) = 0;

  /// Waits until the rows of all attended tokens are in the store. Throws InvalidArgument when a
  /// value of K or V is not finite (naming layer, head and position).
  virtual void finish() = 0;

  /// Rows that were taken by calls that returned are gone: a value of theirs could not be stored,
  /// or the device no longer works. Never on the host.
  virtual bool lost() const { return false; }
};

}  // namespace topkv
