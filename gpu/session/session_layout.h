// What a session has in device memory, and where a step has what it works on: in device memory, and
// in page-locked memory.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/codes/scan_workspace.h"
#include "src/device/decode_backend.h"

namespace topkv::gpu {

/// What of a layer's rows stays in device memory: of the context's, for all its sessions together
/// (context_window.h), and of a session's own (resident_rows.h).
struct LayerWindow {
  std::int64_t window = 0;          // rows before a token that it attends, itself included
  std::int64_t sinks = 0;           // rows
  bool dense = false;               // attends every row
  PositionRange context_rows = {};  // as far back as windows of later tokens reach
  std::int64_t context_sinks = 0;   // rows
  std::int64_t slots = 0;           // own rows at most: a ring of so many

  /// Rows of sinks that the context has not.
  std::int64_t own_sinks() const { return sinks - context_sinks; }
};

/// Of each layer.
std::vector<LayerWindow> layer_windows(const SessionShape& shape);

/// Where a step of up to so many tokens has what it works on. Offsets in bytes.
struct StepLayout {
  StepLayout(const SessionShape& shape, std::int64_t tokens);

  std::int64_t tokens, q_heads, kv_heads, head_dim;
  ScanLayout scan;  // of the context's codes, or of the session's own
  std::int64_t queries, exact, lse, scan_at, device_bytes;
  std::int64_t host_q, host_k, host_v, host_found, host_scan, host_begun, host_taken, host_ready,
      host_estimate, host_noise, host_exact, host_rare, host_tail, host_tail_noise, host_entries,
      host_log_sums, host_bytes;

  bool operator==(const StepLayout&) const = default;
};

}  // namespace topkv::gpu
