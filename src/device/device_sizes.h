// Sizes: the memory of a device that work takes. They are known without the device, so that a plan
// can be made for a device in another machine.
#pragma once

#include <cstdint>

#include "index/common/key_summaries.h"
#include "src/core/math/matrix.h"
#include "src/device/decode_backend.h"
#include "src/device/device_prefill.h"
#include "topkv/types.h"

namespace topkv {

/// The memory that work takes on a kind of device, and the limits of that kind. Sizes are bytes of
/// device memory. All members are safe from many threads.
class DeviceSizes {
 public:
  virtual ~DeviceSizes() = default;

  virtual bool is_cuda() const = 0;

  /// Returns the type of operands (compute_device.h).
  virtual DType operand_dtype() const = 0;
  /// Returns the tokens of a prefill chunk that suit the device, for a caller without a wish.
  virtual std::int64_t prefill_chunk() const = 0;

  /// Returns the memory that is taken before any model is loaded. Without a device at hand it is a
  /// guess.
  virtual std::int64_t base_bytes() const { return 0; }
  /// Returns the most by which an allocation of `bytes` raises the memory that is used.
  virtual std::int64_t allocation_bytes(std::int64_t bytes) const { return bytes; }
  /// Returns the size of a plain matrix in the form in which the device multiplies it.
  virtual std::int64_t upload_bytes(const Matrix& host) const = 0;
  /// Returns the memory that products with packed weights need beside the weights, however many
  /// these are. 0 on the host, and once ComputeDevice::prepare_packed has taken it.
  virtual std::int64_t packed_bytes() const { return 0; }

  /// Returns whether contexts and sessions may store rows in this dtype.
  virtual bool takes_rows(KvDType /*dtype*/) const { return true; }
  /// Throws Unsupported for heads of a head dim that the device does not know, in any layer.
  virtual void check_heads(const AttentionShape& /*shape*/) const {}
  /// Returns the memory of ComputeDevice::prefill_attention for a text of up to `tokens` tokens.
  virtual std::int64_t prefill_attention_bytes(const AttentionShape& shape,
                                               const PrefillVisibility& visible, KvDType rows,
                                               std::int64_t chunk, std::int64_t tokens) const = 0;

  /// Returns whether the device scans codes of a model of this shape.
  virtual bool scans_codes(const AttentionShape& /*shape*/) const { return false; }
  /// Returns the memory of ComputeDevice::keep_codes for a context of `tokens` tokens, of which
  /// each head has `rare` rare ones. key_bytes and value_bits mean what they do in HeadCodes.
  virtual std::int64_t codes_bytes(const AttentionShape& /*shape*/, std::int64_t /*tokens*/,
                                   std::int64_t /*key_bytes*/, std::int64_t /*value_bits*/,
                                   std::int64_t /*rare*/) const {
    return 0;
  }
  /// Returns whether the device chooses among `entries` entries of each head, for a model of this
  /// shape.
  virtual bool selects(const AttentionShape& /*shape*/, std::int64_t /*entries*/) const {
    return false;
  }
  /// Returns the memory of ComputeDevice::keep_selection when every head has such key summaries.
  virtual std::int64_t selection_bytes(const AttentionShape& /*shape*/,
                                       const KeySummaries& /*head*/) const {
    return 0;
  }
  /// Returns the memory for the results of a session's scans.
  virtual std::int64_t scan_bytes(const SessionShape& /*shape*/) const { return 0; }
  /// Returns the memory of ComputeDevice::decode_backend.
  virtual std::int64_t decode_backend_bytes(const SessionShape& shape) const = 0;
};

}  // namespace topkv
