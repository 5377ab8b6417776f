// Codes on a device: codes of a context, or of a session's own rows, that the device itself scans.
// They summarise keys and values (index/codes/key_codes.h, index/codes/value_codes.h) and lie where
// the arithmetic is, so that the device can score every key.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "topkv/view.h"

namespace topkv {

/// The most bytes of a key's code that a CUDA device scans.
inline constexpr std::int64_t most_code_bytes = 64;

/// The codes of one KV head, for ComputeDevice::keep_codes. Pointers and spans are read during that
/// call alone.
struct HeadCodes {
  RowsView rows;                              ///< rows that the codes stand for
  const std::uint8_t* keys = nullptr;         ///< codes of keys, as KeyCoder lays them out
  std::int64_t key_bytes = 0;                 ///< KeyCoder::bytes(), at most most_code_bytes
  const std::uint8_t* values = nullptr;       ///< codes of values (ValueCoder's); null: none
  std::int64_t value_lanes = 0;               ///< ValueCoder::lanes()
  std::int64_t value_bits = 0;                ///< ValueCoder::bits()
  std::span<const std::int64_t> rare;         ///< positions whose codes fit worst, ascending
  std::vector<float> slots, middle, errors;   ///< KeyCoder::linear
  std::vector<float> value_axes, value_base;  ///< ValueCoder::linear
  float value_variance = 0, value_error_variance = 0;  ///< ValueCoder's
};

/// A device's copy of codes. ComputeDevice::keep_codes makes it, or it is a HostCodes.
/// CodeScanner::scan of that device reads it.
class DeviceCodes {
 public:
  virtual ~DeviceCodes() = default;

  /// Returns the bytes of the device's memory that it takes.
  virtual std::int64_t memory() const = 0;
};

}  // namespace topkv
