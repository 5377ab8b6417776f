#include "gpu/resident_rows.h"

#include <algorithm>

#include "gpu/elementwise.h"
#include "gpu/handles.h"

namespace topkv::gpu {

ResidentRows::ResidentRows(const AttentionShape& shape, const SessionLayout& layout,
                           std::byte* memory)
    : shape_(shape), layout_(layout), memory_(memory) {}

std::int64_t ResidentRows::window_begin(std::int64_t layer, std::int64_t first) const {
  return std::max<std::int64_t>(0, first - of(layer).window + 1);
}

/// Sinks, then as many of the last rows as any window of later tokens reaches back to.
void ResidentRows::load(std::int64_t layer, std::span<const RowSpan> rows, std::int64_t end,
                        cudaStream_t stream) const {
  const LayerWindow& window = of(layer);
  const std::int64_t first = rows[0].first;
  const std::int64_t last = rows[0].end();
  put(layer, rows, {first, std::min(last, window.sinks)}, false, stream);
  put(layer, rows, {std::max(first, end - window.window), last}, true, stream);
}

/// Copies rows of positions `range` to the ring (or the sinks).
void ResidentRows::put(std::int64_t layer, std::span<const RowSpan> rows, PositionRange range,
                       bool ring, cudaStream_t stream) const {
  const LayerWindow& window = of(layer);
  const std::int64_t slots = ring ? window.slots : window.sinks;
  const std::int64_t row = shape_.head_dim * bytes_of(DType::bf16);
  std::byte* base = memory_ + (ring ? window.ring_at : window.sinks_at);
  for (std::int64_t p = range.begin; p < range.end;) {
    const std::int64_t slot = p % slots;
    const std::int64_t count = std::min(range.end - p, slots - slot);
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      const auto& [from, first] = rows[static_cast<std::size_t>(head)];
      std::byte* keys = base + (head * 2 * slots + slot) * row;
      const auto bytes = static_cast<std::size_t>(count * row);
      TOPKV_CUDA(cudaMemcpyAsync(keys, from.key(p - first), bytes, cudaMemcpyHostToDevice, stream));
      TOPKV_CUDA(cudaMemcpyAsync(keys + slots * row, from.value(p - first), bytes,
                                 cudaMemcpyHostToDevice, stream));
    }
    p += count;
  }
}

/// To the ring, and to the sinks while these are not complete. What cannot be stored is found on
/// the host, which keeps the rows for good.
void ResidentRows::add(std::int64_t layer, const float* k, const float* v, std::int64_t tokens,
                       std::int64_t first, cudaStream_t stream) const {
  const LayerWindow& window = of(layer);
  const std::int64_t d = shape_.head_dim;
  auto* bad = at<unsigned long long>(layout_.bad);
  PackTarget target;
  target.keys = at<__nv_bfloat16>(window.ring_at);
  target.values = target.keys + window.slots * d;
  target.head_stride = 2 * window.slots * d;
  target.first = first;
  target.ring = window.slots;
  pack_rows(k, v, tokens, shape_.kv_heads, d, target, bad, stream);
  const std::int64_t sinks = std::min(tokens, window.sinks - first);
  if (sinks <= 0) return;
  PackTarget first_rows;
  first_rows.keys = at<__nv_bfloat16>(window.sinks_at) + first * d;
  first_rows.values = first_rows.keys + window.sinks * d;
  first_rows.head_stride = 2 * window.sinks * d;
  pack_rows(k, v, sinks, shape_.kv_heads, d, first_rows, bad, stream);
}

DeviceRows ResidentRows::ring(const LayerWindow& window, std::int64_t first,
                              std::int64_t count) const {
  DeviceRows rows;
  rows.keys = at<__nv_bfloat16>(window.ring_at);
  rows.values = rows.keys + window.slots * shape_.head_dim;
  rows.head_stride = 2 * window.slots * shape_.head_dim;
  rows.first = first;
  rows.count = count;
  rows.ring = window.slots;
  return rows;
}

/// Sinks before the ring's rows, and the ring with the new ones: two disjoint sets.
void ResidentRows::attend(std::int64_t layer, std::int64_t added, const AttentionQueries& queries,
                          const DevicePartial& partial, cudaStream_t stream) const {
  const LayerWindow& window = of(layer);
  const std::int64_t begin = window_begin(layer, queries.first);
  gpu::attend(queries, ring(window, begin, queries.first + added - begin),
              {true, window.dense ? 0 : window.window, window.sinks}, partial, Into::overwrite,
              stream);
  const std::int64_t sinks = std::min(window.sinks, begin);
  if (sinks == 0) return;
  DeviceRows rows;
  rows.keys = at<__nv_bfloat16>(window.sinks_at);
  rows.values = rows.keys + window.sinks * shape_.head_dim;
  rows.head_stride = 2 * window.sinks * shape_.head_dim;
  rows.count = sinks;
  gpu::attend(queries, rows, {}, partial, Into::merge, stream);
}

}  // namespace topkv::gpu
