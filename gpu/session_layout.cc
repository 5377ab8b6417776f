#include "gpu/session_layout.h"

#include <algorithm>

#include "gpu/cuda_codes.h"
#include "gpu/row_stream.h"
#include "src/device/pieces.h"

namespace topkv::gpu {
namespace {

constexpr std::int64_t list_memory = std::int64_t{1} << 20;  // for the lists of one scan
// Of a token: what 15 threads take once, or, where there are many heads or rows, twice.
constexpr std::int64_t most_lists = 14;
constexpr std::int64_t many_rows = 512;  // of a KV head

}  // namespace

SessionLayout::SessionLayout(const SessionShape& shape) {
  const AttentionShape& a = shape.attention;
  const std::int64_t f32 = bytes_of(DType::f32);
  const std::int64_t row = a.head_dim * bytes_of(DType::bf16);
  const std::int64_t heads = shape.max_tokens * a.q_heads;
  std::int64_t list_bytes = 0;  // of one token's lists: of each its length, and positions
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
  queries = device.place(heads * row);
  exact = device.place(heads * a.head_dim * f32);
  lse = device.place(heads * f32);
  // Of scans, each with its lse behind. (The host's tail lies in page-locked memory.)
  const std::int64_t of_scans = shape.codes ? heads : 0;
  rare = device.place(of_scans * (a.head_dim + 1) * f32);
  estimate = device.place(of_scans * (a.head_dim + 1) * f32);
  noise = device.place(of_scans * std::int64_t{sizeof(TailNoise)});
  figures = device.place(a.layers * figures_of_layer * std::int64_t{sizeof(double)});
  tiles = device.place(any_dense ? RowStream::bytes(a.kv_heads, a.head_dim, dense_tile) : 0);
  bad = device.place(8);
  if (shape.codes) {
    const std::int64_t n = static_cast<const CudaCodes&>(*shape.codes).tokens();
    // Heads want different rows, and a sample tells the threshold roughly. What does not fit
    // stays in the tail.
    const std::int64_t rows = std::min(shape.most_rows, n);
    const bool twice = a.kv_heads * 2 > most_lists || a.group() * rows > many_rows;
    const std::int64_t all_lists = twice ? 2 * most_lists : most_lists;
    lists = std::clamp<std::int64_t>(all_lists / a.kv_heads, 1, scan_lists);
    list_rows = std::min(n, 4 * a.group() * rows / lists + 256);
    list_bytes = lists * a.kv_heads * (1 + list_rows) * std::int64_t{sizeof(int)};
    list_tokens = std::clamp<std::int64_t>(list_memory / list_bytes, 1, shape.max_tokens);
  }
  device_bytes = device.used();

  Pieces host;
  host_q = host.place(heads * a.head_dim * f32);
  host_k = host.place(shape.max_tokens * a.kv_heads * a.head_dim * f32);
  host_v = host.place(shape.max_tokens * a.kv_heads * a.head_dim * f32);
  host_found = host.place(heads * (a.head_dim + 1) * f32);
  host_lists = host.place(list_tokens * list_bytes);
  host_begun = host.place(std::int64_t{sizeof(int)});
  host_taken = host.place(std::int64_t{sizeof(int)});
  host_ready = host.place(std::int64_t{sizeof(int)});
  const std::int64_t given = shape.tail && !shape.codes ? heads : 0;
  host_estimate = host.place(given * (a.head_dim + 1) * f32);
  host_noise = host.place(given * std::int64_t{sizeof(TailNoise)});
  host_exact = host.place((shape.judged ? heads : 0) * (a.head_dim + 1) * f32);
  host_bytes = host.used();
}

}  // namespace topkv::gpu
