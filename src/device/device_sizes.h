// What work takes of a device's memory: known without the device, so that it can be planned for one
// that is elsewhere.
#pragma once

#include <cstdint>

#include "index/stand_ins.h"
#include "src/core/matrix.h"
#include "src/device/decode_backend.h"
#include "src/device/device_prefill.h"
#include "topkv/types.h"

namespace topkv {

/// Bytes are of device memory unless they say otherwise. Safe from many threads.
class DeviceSizes {
 public:
  virtual ~DeviceSizes() = default;

  virtual bool is_cuda() const = 0;

  /// Type of operands (compute_device.h).
  virtual DType operand_dtype() const = 0;
  /// Tokens of a prefill chunk that suit the device when the caller has no wish.
  virtual std::int64_t prefill_chunk() const = 0;

  /// What is taken before any model is loaded: about, where no device says how much.
  virtual std::int64_t base_bytes() const { return 0; }
  /// The most by which allocating so many bytes raises what is used.
  virtual std::int64_t allocation_bytes(std::int64_t bytes) const { return bytes; }
  /// Of a plain matrix as the device multiplies it.
  virtual std::int64_t upload_bytes(const Matrix& host) const = 0;
  /// That products with packed weights still need beside them, whatever the number of these: 0 on
  /// the host, and once ComputeDevice::prepare_packed has taken it.
  virtual std::int64_t packed_bytes() const { return 0; }

  /// Whether contexts and sessions may keep rows so.
  virtual bool takes_rows(KvDType /*dtype*/) const { return true; }
  /// Of ComputeDevice::prefill_attention.
  virtual std::int64_t prefill_attention_bytes(const AttentionShape& shape,
                                               const PrefillVisibility& visible, KvDType rows,
                                               std::int64_t chunk) const = 0;

  /// Whether it scans codes of such a shape.
  virtual bool scans_codes(const AttentionShape& /*shape*/) const { return false; }
  /// Of ComputeDevice::keep_codes: of so many tokens, `rare` of them in each head, with HeadCodes'
  /// bytes and bits.
  virtual std::int64_t codes_bytes(const AttentionShape& /*shape*/, std::int64_t /*tokens*/,
                                   std::int64_t /*key_bytes*/, std::int64_t /*value_bits*/,
                                   std::int64_t /*rare*/) const {
    return 0;
  }
  /// Whether it chooses entries of such a shape, of each head so many.
  virtual bool selects(const AttentionShape& /*shape*/, std::int64_t /*entries*/) const {
    return false;
  }
  /// Of ComputeDevice::keep_selection, where every head has such stand-ins.
  virtual std::int64_t selection_bytes(const AttentionShape& /*shape*/,
                                       const StandIns& /*head*/) const {
    return 0;
  }
  /// What scans of codes give a session.
  virtual std::int64_t scan_bytes(const SessionShape& /*shape*/) const { return 0; }
  /// Of ComputeDevice::decode_backend.
  virtual std::int64_t decode_backend_bytes(const SessionShape& shape) const = 0;
};

}  // namespace topkv
