// A device's copy of an index: of a context's, or of the index over a session's own rows.
//
// A device that scans has codes of keys and values (index/codes/key_codes.h,
// index/codes/value_codes.h), so that it can score every key. A device that chooses has key
// summaries (index/common/key_summaries.h), by which it chooses entries: pages, keys or clusters.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "topkv/view.h"

namespace topkv {

/// The most bytes of a key's code that a CUDA device scans.
inline constexpr std::int64_t most_code_bytes = 64;
/// The most bits of a value's code that a CUDA device scans.
inline constexpr std::int64_t most_value_bits = 256;

/// The codes of one KV head, for ComputeDevice::keep_codes. Pointers and spans are read during that
/// call alone.
struct HeadCodes {
  RowsView rows;                              ///< rows that the codes stand for
  const std::uint8_t* keys = nullptr;         ///< codes of keys, as KeyCoder lays them out
  std::int64_t key_bytes = 0;                 ///< KeyCoder::bytes(), at most most_code_bytes
  const std::uint8_t* values = nullptr;       ///< codes of values (ValueCoder's); null: none
  std::int64_t value_lanes = 0;               ///< ValueCoder::lanes()
  std::int64_t value_bits = 0;                ///< ValueCoder::bits(), at most most_value_bits
  std::span<const std::int64_t> rare;         ///< positions whose codes fit worst, ascending
  std::vector<float> slots, middle, errors;   ///< KeyCoder::linear
  std::vector<float> value_axes, value_base;  ///< ValueCoder::linear
  float value_variance = 0, value_error_variance = 0;  ///< ValueCoder's
  std::span<const float> shared_form;                  ///< CodeTail::shared_form; empty: unknown
  double shared_unit = 0;                              ///< CodeTail::shared_unit
};

/// A device's copy of an index, in all layers. ComputeDevice::keep_codes or keep_selection makes
/// it, or it is a HostCodes. CodeScanner::scan or EntryChooser::choose of that device reads it.
/// Const members are safe from any thread.
class DeviceIndex {
 public:
  virtual ~DeviceIndex() = default;

  /// Returns whether it has codes, which the device scans. False: it has key summaries.
  virtual bool has_codes() const = 0;
  /// Returns the bytes of the device's memory that it takes.
  virtual std::int64_t memory() const = 0;
  /// With key summaries: returns the most entries of a head that are chosen in a layer to hold k
  /// rows. 0: the layer has no summaries.
  virtual std::int64_t most_entries(std::int64_t /*layer*/, std::int64_t /*k*/) const { return 0; }
};

}  // namespace topkv
