// Where a session's step has what it works on: in device memory, and in page-locked memory.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/scan_room.h"
#include "src/device/decode_backend.h"

namespace topkv::gpu {

/// The resident rows of one layer: a ring of the last rows, and the sinks.
struct LayerWindow {
  std::int64_t window = 0;    // rows before a token that it attends, itself included
  std::int64_t sinks = 0;     // rows
  std::int64_t slots = 0;     // of the ring
  std::int64_t ring_at = 0;   // bytes; [kv_heads, 2, slots, head_dim]
  std::int64_t sinks_at = 0;  // bytes; [kv_heads, 2, sinks, head_dim]
  bool dense = false;         // attends every row
};

/// Offsets in bytes.
struct SessionLayout {
  static constexpr std::int64_t dense_tile = 16384;  // rows of a dense layer on their way at a time
  static constexpr std::int64_t figures_of_layer = 2;  // exact_mass, error

  explicit SessionLayout(const SessionShape& shape);

  bool has_tiles() const { return bad > tiles; }

  std::vector<LayerWindow> layers;
  KvDType rows;  // as they are stored; those that are resident stand for them in bf16
  ScanLayout scan;  // of the context's codes, or of the session's own
  std::int64_t channels;  // of keys, [layers, kv_heads, head_dim], where rows are in blocks
  std::int64_t queries, exact, lse, scan_at, figures, tiles, bad, device_bytes;
  std::int64_t host_q, host_k, host_v, host_found, host_scan, host_begun, host_taken, host_ready,
      host_estimate, host_noise, host_exact, host_rare, host_tail, host_tail_noise, host_entries,
      host_log_sums, host_bytes;
};

}  // namespace topkv::gpu
