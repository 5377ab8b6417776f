#include "gpu/resident_rows.h"

#include <algorithm>
#include <vector>

#include "gpu/elementwise.h"
#include "gpu/handles.h"
#include "gpu/row_blocks.h"
#include "src/core/convert.h"
#include "src/core/row_format.h"

namespace topkv::gpu {

ResidentRows::ResidentRows(const AttentionShape& shape, const SessionLayout& layout,
                           std::byte* memory)
    : shape_(shape), layout_(layout), memory_(memory) {}

std::int64_t ResidentRows::window_begin(std::int64_t layer, std::int64_t first) const {
  return std::max<std::int64_t>(0, first - of(layer).window + 1);
}

float* ResidentRows::channels(std::int64_t layer) const {
  if (!in_blocks(layout_.rows.keys)) return nullptr;
  return at<float>(layout_.channels) + layer * shape_.kv_heads * shape_.head_dim;
}

/// Sinks, then as many of the last rows as any window of later tokens reaches back to.
void ResidentRows::load(std::int64_t layer, std::span<const RowSpan> rows, std::int64_t end,
                        cudaStream_t stream) const {
  const LayerWindow& window = of(layer);
  const std::int64_t first = rows[0].first;
  const std::int64_t last = rows[0].end();
  for (std::int64_t h = 0; h < shape_.kv_heads && channels(layer) != nullptr; ++h) {
    TOPKV_CUDA(cudaMemcpyAsync(
        channels(layer) + h * shape_.head_dim, rows[static_cast<std::size_t>(h)].rows.keys.channels,
        static_cast<std::size_t>(shape_.head_dim) * sizeof(float), cudaMemcpyHostToDevice, stream));
  }
  put(layer, rows, {first, std::min(last, window.sinks)}, false, stream);
  put(layer, rows, {std::max(first, end - window.window), last}, true, stream);
}

/// Host to device; of rows in blocks, what they stand for.
void ResidentRows::copy_as_bf16(const KeyView& from, std::byte* to, cudaStream_t stream) {
  const auto bytes = static_cast<std::size_t>(from.count * from.dim * bytes_of(DType::bf16));
  if (!in_blocks(from.dtype)) {
    TOPKV_CUDA(cudaMemcpyAsync(to, from.data, bytes, cudaMemcpyHostToDevice, stream));
    return;
  }
  std::vector<std::byte> rounded(bytes);
  std::vector<float> wide(static_cast<std::size_t>(from.dim));
  for (std::int64_t i = 0; i < from.count; ++i) {
    decode(from, i, wide.data());
    from_float(wide.data(), from.dim, DType::bf16,
               rounded.data() + i * from.dim * bytes_of(DType::bf16));
  }
  TOPKV_CUDA(cudaMemcpyAsync(to, rounded.data(), bytes, cudaMemcpyHostToDevice, stream));
  TOPKV_CUDA(cudaStreamSynchronize(stream));
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
      copy_as_bf16(from.keys.part({p - first, p - first + count}), keys, stream);
      copy_as_bf16(from.values.part({p - first, p - first + count}), keys + slots * row, stream);
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
  PackTarget target;
  target.keys = at<__nv_bfloat16>(window.ring_at);
  target.values = target.keys + window.slots * d;
  target.head_stride = 2 * window.slots * d;
  target.first = first;
  target.ring = window.slots;
  pack(layer, k, v, tokens, target, stream);
  const std::int64_t sinks = std::min(tokens, window.sinks - first);
  if (sinks <= 0) return;
  PackTarget first_rows;
  first_rows.keys = at<__nv_bfloat16>(window.sinks_at) + first * d;
  first_rows.values = first_rows.keys + window.sinks * d;
  first_rows.head_stride = 2 * window.sinks * d;
  pack(layer, k, v, sinks, first_rows, stream);
}

void ResidentRows::pack(std::int64_t layer, const float* k, const float* v, std::int64_t tokens,
                        const PackTarget& target, cudaStream_t stream) const {
  auto* bad = at<unsigned long long>(layout_.bad);
  const std::int64_t d = shape_.head_dim;
  if (channels(layer) == nullptr) {
    pack_rows(k, v, tokens, shape_.kv_heads, d, target, bad, stream);
  } else {
    pack_blocks(k, v, tokens, shape_.kv_heads, d, layout_.rows, channels(layer), {}, target, bad,
                stream);
  }
}

DeviceRows ResidentRows::ring(const LayerWindow& window, std::int64_t first,
                              std::int64_t count) const {
  const std::int64_t d = shape_.head_dim;
  const std::int64_t slot = first % window.slots;
  DeviceRows rows;
  rows.keys_behind = at<__nv_bfloat16>(window.ring_at);
  rows.values_behind = rows.keys_behind + window.slots * d;
  rows.stride_behind = 2 * window.slots * d;
  rows.keys = rows.keys_behind + slot * d;
  rows.values = rows.values_behind + slot * d;
  rows.head_stride = rows.stride_behind;
  rows.first = first;
  rows.count = count;
  rows.split = window.slots - slot;
  return rows;
}

/// Sinks before the ring's rows, and the ring with the new ones: two disjoint sets.
void ResidentRows::attend(std::int64_t layer, std::int64_t added, const AttentionQueries& queries,
                          const PositionRange& sees, const DevicePartial& partial,
                          cudaStream_t stream) const {
  const LayerWindow& window = of(layer);
  const std::int64_t begin = window_begin(layer, queries.first);
  const PositionRange last = sees.within({begin, queries.first + added});
  gpu::attend(queries, ring(window, last.begin, last.size()),
              {true, window.dense ? 0 : window.window, window.sinks}, partial, Into::overwrite,
              stream);
  const PositionRange sinks = sees.within({0, std::min(window.sinks, begin)});
  if (sinks.size() == 0) return;
  DeviceRows rows;
  rows.keys = at<__nv_bfloat16>(window.sinks_at) + sinks.begin * shape_.head_dim;
  rows.values = rows.keys + window.sinks * shape_.head_dim;
  rows.head_stride = 2 * window.sinks * shape_.head_dim;
  rows.first = sinks.begin;
  rows.count = sinks.size();
  gpu::attend(queries, rows, {}, partial, Into::merge, stream);
}

}  // namespace topkv::gpu
