#include "gpu/row_stream.h"

#include <algorithm>

#include "gpu/faults.h"

namespace topkv::gpu {

std::int64_t RowStream::bytes(std::int64_t kv_heads, std::int64_t head_dim,
                              std::int64_t tile_rows) {
  return slots * kv_heads * 2 * tile_rows * head_dim * bytes_of(DType::bf16);
}

RowStream::RowStream(std::int64_t kv_heads, std::int64_t head_dim, std::int64_t tile_rows,
                     std::byte* memory)
    : kv_heads_(kv_heads), head_dim_(head_dim), tile_rows_(tile_rows), slots_(slots) {
  const std::int64_t slot_bytes = bytes(kv_heads, head_dim, tile_rows) / slots;
  for (std::int64_t i = 0; i < slots; ++i) {
    slots_[static_cast<std::size_t>(i)].data =
        reinterpret_cast<__nv_bfloat16*>(memory + i * slot_bytes);
  }
}

void RowStream::stream(std::span<const RowsView> rows, PositionRange range, cudaStream_t compute,
                       const std::function<void(const DeviceRows&)>& use) {
  const std::int64_t half = tile_rows_ * head_dim_;  // elements of a head's keys in a slot
  for (std::int64_t begin = range.begin; begin < range.end; begin += tile_rows_) {
    const std::int64_t count = std::min(tile_rows_, range.end - begin);
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % slots_.size();
    slot.used.block(copies_);
    inject_copy_delay(copies_);
    for (std::int64_t head = 0; head < kv_heads_; ++head) {
      const RowsView& from = rows[static_cast<std::size_t>(head)];
      __nv_bfloat16* to = slot.data + head * 2 * half;
      const auto bytes = static_cast<std::size_t>(count * from.stride_bytes);
      TOPKV_CUDA(cudaMemcpyAsync(to, from.key(begin), bytes, cudaMemcpyHostToDevice, copies_));
      TOPKV_CUDA(
          cudaMemcpyAsync(to + half, from.value(begin), bytes, cudaMemcpyHostToDevice, copies_));
    }
    slot.arrived.record(copies_);
    slot.arrived.block(compute);
    DeviceRows tile;
    tile.keys = slot.data;
    tile.values = slot.data + half;
    tile.head_stride = 2 * half;
    tile.first = begin;
    tile.count = count;
    use(tile);
    slot.used.record(compute);
  }
}

}  // namespace topkv::gpu
