// Sizes and offsets of the memory of a session and of its steps, in device memory and in
// page-locked host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/attention/attention.h"
#include "gpu/codes/scan_workspace.h"
#include "src/device/decode_backend.h"

namespace topkv::gpu {

/// The rows of a layer that stay in device memory. All sessions of a context share the context's
/// rows (context_window.h). A session's own rows are its own (resident_rows.h).
struct LayerWindow {
  std::int64_t row_layer = 0;       // the layer whose rows it attends, and whose memory it reads
  bool has_rows = false;            // that layer is this one: it has memory of its own
  LayerHeads heads = {};            // of that layer as of this one
  std::int64_t window = 0;          // rows that a token attends before it, itself included
  std::int64_t sinks = 0;           // rows that a token attends
  std::int64_t kept_sinks = 0;      // the most sinks of all layers that attend these rows
  bool dense = false;               // a token attends every row
  PositionRange context_rows = {};  // as far back as windows of later tokens reach
  std::int64_t context_sinks = 0;   // rows of kept_sinks that the context has
  std::int64_t slots = 0;           // the most own rows; they form a ring
  // Offsets in the memory of a ContextWindow, in bytes, which it sets: rows, sinks, and the
  // channels and the bias of stored keys.
  std::int64_t rows_at = 0, sinks_at = 0, channels_at = 0, bias_at = 0;

  /// The number of kept sinks that the context does not have.
  std::int64_t own_sinks() const { return kept_sinks - context_sinks; }
};

/// Returns one LayerWindow for each layer. It is empty for a layer with a recurrent state.
std::vector<LayerWindow> layer_windows(const SessionShape& shape);

/// The offsets, in bytes, of the workspace of a step. It has room for the heads of every layer. The
/// constructor takes the most tokens that a step in it can have.
struct StepLayout {
  StepLayout(const SessionShape& shape, std::int64_t tokens);

  std::int64_t tokens, q_heads;
  std::int64_t kv_heads, head_dim;  // of layers that attend all tokens
  std::int64_t widest_head, widest_kv;
  bool keys_are_values;
  ScanLayout scan;  // of the context's codes, or of the session's own
  std::int64_t queries, exact, lse, scan_at, device_bytes;
  std::int64_t host_q, host_k, host_v, host_found, host_scan, host_begun, host_taken, host_ready,
      host_estimate, host_noise, host_exact, host_rare, host_tail, host_tail_noise, host_entries,
      host_log_sums, host_bytes;

  bool operator==(const StepLayout&) const = default;
};

}  // namespace topkv::gpu
