#include "gpu/attention/row_stream.h"

#include <algorithm>

#include "gpu/runtime/faults.h"

namespace topkv::gpu {

namespace {

std::int64_t unpacked_tile_bytes(const AttentionShape& shape, KvDType dtype,
                                 std::int64_t tile_rows) {
  return in_blocks(dtype.keys) ? tile_rows * widest_rows(shape, KvDType()) : 0;
}

}  // namespace

std::int64_t widest_rows(const AttentionShape& shape, KvDType dtype) {
  std::int64_t most = 0;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    most = std::max(most, shape.kv_heads_of(layer) * shape.row_bytes_of(layer, dtype));
  return most;
}

void copy_rows(const RowSpan& rows, KeyView RowsView::*half, const PositionRange& range,
               std::byte* to, cudaStream_t stream) {
  const RowSpan part = rows.part(range);
  for (const RowsView* piece : {&part.rows, &part.more}) {
    const KeyView& vectors = piece->*half;
    const auto bytes = static_cast<std::size_t>(vectors.count * vectors.stride_bytes);
    if (bytes == 0) continue;
    TOPKV_CUDA(cudaMemcpyAsync(to, vectors.data, bytes, cudaMemcpyHostToDevice, stream));
    to += bytes;
  }
}

std::int64_t RowStream::bytes(const AttentionShape& shape, KvDType dtype, std::int64_t tile_rows) {
  return unpacked_tile_bytes(shape, dtype, tile_rows) +
         slots * tile_rows * widest_rows(shape, dtype);
}

RowStream::RowStream(const AttentionShape& shape, KvDType dtype, std::int64_t tile_rows,
                     std::byte* memory)
    : dtype_(dtype),
      tile_rows_(tile_rows),
      unpacked_(in_blocks(dtype.keys) ? reinterpret_cast<__nv_bfloat16*>(memory) : nullptr),
      slots_(slots) {
  memory += unpacked_tile_bytes(shape, dtype, tile_rows);
  for (std::int64_t i = 0; i < slots; ++i)
    slots_[static_cast<std::size_t>(i)].data = memory + i * tile_rows * widest_rows(shape, dtype);
}

void RowStream::stream(const LayerHeads& heads, std::span<const RowSpan> rows, PositionRange range,
                       const StoredKeys& stored, cudaStream_t compute,
                       const std::function<void(const DeviceRows&)>& use) {
  const std::int64_t dim = heads.head_dim;
  const bool has_values = !heads.keys_are_values;
  const std::int64_t half = tile_rows_ * dim;  // elements of a head's keys in a tile
  const std::int64_t head_stride = heads.vectors() * half;
  const std::int64_t key_bytes = tile_rows_ * vector_bytes(dtype_.keys, dim);
  const std::int64_t head_bytes =
      key_bytes + (has_values ? tile_rows_ * vector_bytes(dtype_.values, dim) : 0);
  for (std::int64_t begin = range.begin; begin < range.end; begin += tile_rows_) {
    const std::int64_t count = std::min(tile_rows_, range.end - begin);
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % slots_.size();
    slot.used.block(copies_);
    inject_copy_delay(copies_);
    for (std::int64_t head = 0; head < heads.kv_heads; ++head) {
      const RowSpan& from = rows[static_cast<std::size_t>(head)];
      std::byte* to = slot.data + head * head_bytes;
      const PositionRange tile{begin, begin + count};
      copy_rows(from, &RowsView::keys, tile, to, copies_);
      if (has_values) copy_rows(from, &RowsView::values, tile, to + key_bytes, copies_);
    }
    slot.arrived.record(copies_);
    slot.arrived.block(compute);
    auto* ready = reinterpret_cast<__nv_bfloat16*>(slot.data);
    if (unpacked_ != nullptr) {
      ready = unpacked_;
      unpack_blocks(slot.data, head_bytes, count, heads.kv_heads, dim, dtype_.keys,
                    stored.from(rows[0].rows.keys.first_position + begin - rows[0].first), ready,
                    head_stride, compute);
      if (has_values) {
        unpack_blocks(slot.data + key_bytes, head_bytes, count, heads.kv_heads, dim, dtype_.values,
                      {}, ready + half, head_stride, compute);
      }
      slot.used.record(compute);
    }
    DeviceRows tile;
    tile.keys = ready;
    tile.values = has_values ? ready + half : ready;
    tile.head_stride = head_stride;
    tile.first = begin;
    tile.count = count;
    use(tile);
    if (unpacked_ == nullptr) slot.used.record(compute);
  }
}

}  // namespace topkv::gpu
