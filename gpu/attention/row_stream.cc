#include "gpu/attention/row_stream.h"

#include <algorithm>

#include "gpu/runtime/faults.h"

namespace topkv::gpu {

std::int64_t RowStream::bytes(std::int64_t kv_heads, std::int64_t head_dim, KvDType dtype,
                              std::int64_t tile_rows) {
  const std::int64_t rows = kv_heads * tile_rows;
  const std::int64_t unpacked = in_blocks(dtype.keys) ? rows * KvDType().row_bytes(head_dim) : 0;
  return unpacked + slots * rows * dtype.row_bytes(head_dim);
}

RowStream::RowStream(std::int64_t kv_heads, std::int64_t head_dim, KvDType dtype,
                     std::int64_t tile_rows, std::byte* memory)
    : kv_heads_(kv_heads),
      head_dim_(head_dim),
      dtype_(dtype),
      tile_rows_(tile_rows),
      unpacked_(in_blocks(dtype.keys) ? reinterpret_cast<__nv_bfloat16*>(memory) : nullptr),
      slots_(slots) {
  const std::int64_t rows = kv_heads * tile_rows;
  if (unpacked_ != nullptr) memory += rows * KvDType().row_bytes(head_dim);
  for (std::int64_t i = 0; i < slots; ++i)
    slots_[static_cast<std::size_t>(i)].data = memory + i * rows * dtype.row_bytes(head_dim);
}

void RowStream::stream(std::span<const RowsView> rows, PositionRange range,
                       const StoredKeys& stored, cudaStream_t compute,
                       const std::function<void(const DeviceRows&)>& use) {
  const std::int64_t half = tile_rows_ * head_dim_;  // elements of a head's keys in a tile
  const std::int64_t key_bytes = tile_rows_ * vector_bytes(dtype_.keys, head_dim_);
  const std::int64_t head_bytes = tile_rows_ * dtype_.row_bytes(head_dim_);
  for (std::int64_t begin = range.begin; begin < range.end; begin += tile_rows_) {
    const std::int64_t count = std::min(tile_rows_, range.end - begin);
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % slots_.size();
    slot.used.block(copies_);
    inject_copy_delay(copies_);
    for (std::int64_t head = 0; head < kv_heads_; ++head) {
      const RowsView& from = rows[static_cast<std::size_t>(head)];
      std::byte* to = slot.data + head * head_bytes;
      const auto copy = [&](std::byte* target, const KeyView& vectors) {
        TOPKV_CUDA(cudaMemcpyAsync(target, vectors.key(begin),
                                   static_cast<std::size_t>(count * vectors.stride_bytes),
                                   cudaMemcpyHostToDevice, copies_));
      };
      copy(to, from.keys);
      copy(to + key_bytes, from.values);
    }
    slot.arrived.record(copies_);
    slot.arrived.block(compute);
    auto* ready = reinterpret_cast<__nv_bfloat16*>(slot.data);
    if (unpacked_ != nullptr) {
      ready = unpacked_;
      unpack_blocks(slot.data, head_bytes, count, kv_heads_, head_dim_, dtype_.keys,
                    stored.from(rows[0].keys.first_position + begin), ready, 2 * half, compute);
      unpack_blocks(slot.data + key_bytes, head_bytes, count, kv_heads_, head_dim_, dtype_.values,
                    {}, ready + half, 2 * half, compute);
      slot.used.record(compute);
    }
    DeviceRows tile;
    tile.keys = ready;
    tile.values = ready + half;
    tile.head_stride = 2 * half;
    tile.first = begin;
    tile.count = count;
    use(tile);
    if (unpacked_ == nullptr) slot.used.record(compute);
  }
}

}  // namespace topkv::gpu
