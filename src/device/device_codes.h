// Codes of a context, or of a session's own rows, on a device: what stands for keys and values
// (index/key_codes.h, index/value_codes.h), kept where the arithmetic is, so that the device scores
// every key itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "topkv/view.h"

namespace topkv {

/// Of a key, that a device scans.
inline constexpr std::int64_t most_code_bytes = 64;

/// What a device is given of one KV head. Pointers and spans are read during the call alone.
struct HeadCodes {
  RowsView rows;                              ///< bf16
  const std::uint8_t* keys = nullptr;         ///< as KeyCoder lays their codes out
  std::int64_t key_bytes = 0;                 ///< KeyCoder::bytes(), at most most_code_bytes
  const std::uint8_t* values = nullptr;       ///< as ValueCoder lays them out; null: none
  std::int64_t value_lanes = 0;               ///< ValueCoder::lanes()
  std::int64_t value_bits = 0;                ///< ValueCoder::bits()
  std::span<const std::int64_t> rare;         ///< positions that codes stand for badly, ascending
  std::vector<float> slots, middle, errors;   ///< KeyCoder::linear
  std::vector<float> value_axes, value_base;  ///< ValueCoder::linear
  float value_variance = 0, value_error_variance = 0;  ///< ValueCoder's
};

/// Made by ComputeDevice::keep_codes, or HostCodes; used by DecodeBackend::scan of the same device.
class DeviceCodes {
 public:
  virtual ~DeviceCodes() = default;

  /// Bytes of the device's memory.
  virtual std::int64_t memory() const = 0;
};

}  // namespace topkv
