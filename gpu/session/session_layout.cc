#include "gpu/session/session_layout.h"

#include <algorithm>

#include "gpu/codes/codes.h"
#include "src/attention/chunk_passes.h"
#include "src/device/pieces.h"

namespace topkv::gpu {

std::vector<LayerWindow> layer_windows(const SessionShape& shape) {
  const std::int64_t tokens = shape.context_tokens;
  std::vector<LayerWindow> layers;
  for (std::int64_t l = 0; l < shape.attention.layers; ++l) {
    LayerWindow& layer = layers.emplace_back();
    layer.row_layer = shape.attention.row_layer_of(l);
    layer.has_rows = shape.attention.has_rows(l);
    if (!shape.attention.is_attention(l)) continue;
    layer.heads = heads_of(shape.attention, l);
    const CausalWindow exact = shape.always_attended(l);
    layer.dense = exact.window == 0;
    layer.window = layer.dense ? shape.window : exact.window;
    layer.sinks = exact.sinks;
    layer.context_rows = {CausalWindow{layer.window, 0}.begin(tokens), tokens};
    // A step that is refused, since it has more tokens than the session may have, may have begun.
    layer.slots = std::min(layer.window, shape.most_own) + shape.max_tokens;
    LayerWindow& owner = layers[static_cast<std::size_t>(layer.row_layer)];
    owner.kept_sinks = std::max(owner.kept_sinks, layer.sinks);
  }
  for (LayerWindow& layer : layers) {
    layer.kept_sinks = layers[static_cast<std::size_t>(layer.row_layer)].kept_sinks;
    layer.context_sinks = std::min(layer.kept_sinks, tokens);
  }
  return layers;
}

StepLayout::StepLayout(const SessionShape& shape, std::int64_t tokens_)
    : tokens(tokens_),
      q_heads(shape.attention.q_heads),
      kv_heads(shape.attention.kv_heads),
      head_dim(shape.attention.head_dim),
      widest_head(shape.attention.widest_head()),
      widest_kv(shape.attention.widest_kv()),
      keys_are_values(shape.attention.keys_are_values) {
  const std::int64_t f32 = bytes_of(DType::f32);
  const std::int64_t heads = tokens * q_heads;
  // A step that goes ahead has all queries of its token (src/attention/chunk_passes.h).
  const std::int64_t forms = shape.scans() && shape.attention.chunk_len > 0 ? query_forms : 1;
  const std::int64_t query_heads = std::max(heads, forms * q_heads);
  Pieces device;
  queries = device.place(query_heads * widest_head * bytes_of(DType::bf16));
  exact = device.place(heads * widest_head * f32);
  lse = device.place(heads * f32);
  if (shape.scans()) {
    const auto& codes = static_cast<const CudaCodes&>(*shape.index);
    SessionShape of_step = shape;
    of_step.max_tokens = tokens;
    scan = ScanLayout(of_step, std::max(codes.tokens(), shape.most_own));
  }
  scan_at = device.place(scan.device_bytes);  // (the host's tail lies in page-locked memory)
  device_bytes = device.used();

  Pieces host;
  host_q = host.place(query_heads * widest_head * f32);
  host_k = host.place(tokens * widest_kv * f32);
  host_v = host.place(keys_are_values ? 0 : tokens * widest_kv * f32);
  host_found = host.place(heads * (widest_head + 1) * f32);
  host_scan = host.place(scan.host_bytes);
  host_begun = host.place(std::int64_t{sizeof(int)});
  host_taken = host.place(std::int64_t{sizeof(int)});
  host_ready = host.place(std::int64_t{sizeof(int)});
  const std::int64_t given = shape.tail && (!shape.scans() || shape.has_row_rules) ? heads : 0;
  host_estimate = host.place(given * (widest_head + 1) * f32);
  host_noise = host.place(given * std::int64_t{sizeof(TailNoise)});
  const std::int64_t judged = shape.has_row_rules ? heads : 0;
  host_exact = host.place(judged * (widest_head + 1) * f32);
  const std::int64_t scanned = shape.scans() ? judged : 0;
  host_rare = host.place(scanned * (widest_head + 1) * f32);
  host_tail = host.place(scanned * (widest_head + 1) * f32);
  host_tail_noise = host.place(scanned * std::int64_t{sizeof(TailNoise)});
  const std::int64_t chosen = shape.chooses() ? q_heads : 0;
  host_entries = host.place(chosen * shape.most_entries * std::int64_t{sizeof(int)});
  host_log_sums = host.place(chosen * f32);
  host_bytes = host.used();
}

}  // namespace topkv::gpu
