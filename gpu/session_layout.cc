#include "gpu/session_layout.h"

#include <algorithm>

#include "gpu/cuda_codes.h"
#include "gpu/row_stream.h"
#include "src/device/pieces.h"

namespace topkv::gpu {

SessionLayout::SessionLayout(const SessionShape& shape) : rows(shape.rows) {
  const AttentionShape& a = shape.attention;
  const std::int64_t f32 = bytes_of(DType::f32);
  const std::int64_t row = a.head_dim * bytes_of(DType::bf16);
  const std::int64_t heads = shape.max_tokens * a.q_heads;
  Pieces device;
  bool any_dense = false;
  for (std::int64_t l = 0; l < a.layers; ++l) {
    LayerWindow layer;
    const CausalWindow exact = shape.exact(l);
    layer.dense = exact.window == 0;
    layer.window = layer.dense ? shape.window : exact.window;
    layer.sinks = exact.sinks;
    layer.slots = layer.window + shape.max_tokens;
    layer.ring_at = device.place(a.kv_heads * 2 * layer.slots * row);
    layer.sinks_at = device.place(a.kv_heads * 2 * layer.sinks * row);
    any_dense = any_dense || layer.dense;
    layers.push_back(layer);
  }
  channels = device.place(in_blocks(rows.keys) ? a.layers * a.kv_heads * a.head_dim * f32 : 0);
  queries = device.place(heads * row);
  exact = device.place(heads * a.head_dim * f32);
  lse = device.place(heads * f32);
  if (shape.codes) {
    const auto& codes = static_cast<const CudaCodes&>(*shape.codes);
    scan = ScanLayout(shape, std::max(codes.tokens(), shape.most_own));
  }
  scan_at = device.place(scan.device_bytes);  // (the host's tail lies in page-locked memory)
  figures = device.place(a.layers * figures_of_layer * std::int64_t{sizeof(double)});
  tiles = device.place(any_dense ? RowStream::bytes(a.kv_heads, a.head_dim, rows, dense_tile) : 0);
  bad = device.place(8);
  device_bytes = device.used();

  Pieces host;
  host_q = host.place(heads * a.head_dim * f32);
  host_k = host.place(shape.max_tokens * a.kv_heads * a.head_dim * f32);
  host_v = host.place(shape.max_tokens * a.kv_heads * a.head_dim * f32);
  host_found = host.place(heads * (a.head_dim + 1) * f32);
  host_scan = host.place(scan.host_bytes);
  host_begun = host.place(std::int64_t{sizeof(int)});
  host_taken = host.place(std::int64_t{sizeof(int)});
  host_ready = host.place(std::int64_t{sizeof(int)});
  const std::int64_t given = shape.tail && (!shape.codes || shape.judged) ? heads : 0;
  host_estimate = host.place(given * (a.head_dim + 1) * f32);
  host_noise = host.place(given * std::int64_t{sizeof(TailNoise)});
  const std::int64_t judged = shape.judged ? heads : 0;
  host_exact = host.place(judged * (a.head_dim + 1) * f32);
  const std::int64_t scanned = shape.codes ? judged : 0;
  host_rare = host.place(scanned * (a.head_dim + 1) * f32);
  host_tail = host.place(scanned * (a.head_dim + 1) * f32);
  host_tail_noise = host.place(scanned * std::int64_t{sizeof(TailNoise)});
  const std::int64_t chosen = shape.selection ? a.q_heads : 0;
  host_entries = host.place(chosen * shape.most_entries * std::int64_t{sizeof(int)});
  host_log_sums = host.place(chosen * f32);
  host_bytes = host.used();
}

}  // namespace topkv::gpu
