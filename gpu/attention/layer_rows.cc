#include "gpu/attention/layer_rows.h"

#include <algorithm>

#include "gpu/attention/row_stream.h"
#include "gpu/runtime/faults.h"

namespace topkv::gpu {
namespace {

constexpr std::int64_t alignment = 256;
constexpr std::int64_t slot_rows = 16384;  // that are copied before they are unpacked

/// The bytes of the rows of a layer that attends all tokens.
std::int64_t layer_bytes(const AttentionShape& shape, KvDType dtype, std::int64_t tokens) {
  const std::int64_t bytes = tokens * shape.kv_heads * shape.row_bytes(dtype);
  return (bytes + alignment - 1) / alignment * alignment;
}

/// The bytes of a slot's rows, as they are stored.
std::int64_t slot_bytes(const AttentionShape& shape, KvDType dtype) {
  return layer_bytes(shape, dtype, slot_rows);
}

}  // namespace

std::int64_t LayerRows::bytes(const AttentionShape& shape, KvDType dtype, std::int64_t tokens) {
  return layer_bytes(shape, KvDType(), tokens) +
         (in_blocks(dtype.keys) ? slots * slot_bytes(shape, dtype) : 0);
}

LayerRows::LayerRows(const AttentionShape& shape, KvDType dtype, std::int64_t tokens,
                     std::byte* memory)
    : dtype_(dtype), tokens_(tokens), rows_(reinterpret_cast<__nv_bfloat16*>(memory)) {
  std::byte* stored = memory + layer_bytes(shape, KvDType(), tokens);
  for (Slot& slot : slots_) {
    slot.data = stored;
    stored += slot_bytes(shape, dtype);
  }
}

DeviceRows LayerRows::load(const LayerHeads& heads, std::span<const RowSpan> rows,
                           std::int64_t count, const StoredKeys& stored, cudaStream_t compute) {
  DeviceRows loaded;
  loaded.head_stride = heads.vectors() * tokens_ * heads.head_dim;
  loaded.count = count;
  loaded.keys = rows_;
  loaded.values = heads.keys_are_values ? rows_ : rows_ + tokens_ * heads.head_dim;
  used_.block(in_blocks(dtype_.keys) ? unpacks_ : copies_);
  if (in_blocks(dtype_.keys)) {
    for (std::int64_t begin = 0; begin < count; begin += slot_rows)
      unpack(heads, rows, {begin, std::min(begin + slot_rows, count)}, stored, loaded);
    loaded_.record(unpacks_);
  } else {
    inject_copy_delay(copies_);
    for (std::int64_t head = 0; count > 0 && head < heads.kv_heads; ++head) {
      const RowSpan& from = rows[static_cast<std::size_t>(head)];
      __nv_bfloat16* to = rows_ + head * loaded.head_stride;
      copy_rows(from, &RowsView::keys, {0, count}, reinterpret_cast<std::byte*>(to), copies_);
      if (heads.keys_are_values) continue;
      to += tokens_ * heads.head_dim;
      copy_rows(from, &RowsView::values, {0, count}, reinterpret_cast<std::byte*>(to), copies_);
    }
    loaded_.record(copies_);
  }
  loaded_.block(compute);
  return loaded;
}

void LayerRows::unpack(const LayerHeads& heads, std::span<const RowSpan> rows,
                       const PositionRange& range, const StoredKeys& stored,
                       const DeviceRows& loaded) {
  const std::int64_t dim = heads.head_dim;
  const std::int64_t key_bytes = slot_rows * vector_bytes(dtype_.keys, dim);
  const std::int64_t head_bytes =
      key_bytes + (heads.keys_are_values ? 0 : slot_rows * vector_bytes(dtype_.values, dim));
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots;
  slot.used.block(copies_);
  inject_copy_delay(copies_);
  for (std::int64_t head = 0; head < heads.kv_heads; ++head) {
    const RowSpan& from = rows[static_cast<std::size_t>(head)];
    std::byte* at = slot.data + head * head_bytes;
    copy_rows(from, &RowsView::keys, range, at, copies_);
    if (!heads.keys_are_values) copy_rows(from, &RowsView::values, range, at + key_bytes, copies_);
  }
  slot.arrived.record(copies_);
  slot.arrived.block(unpacks_);
  __nv_bfloat16* to = rows_ + range.begin * dim;
  unpack_blocks(slot.data, head_bytes, range.size(), heads.kv_heads, dim, dtype_.keys,
                stored.from(rows[0].rows.keys.first_position + range.begin), to, loaded.head_stride,
                unpacks_);
  if (!heads.keys_are_values) {
    unpack_blocks(slot.data + key_bytes, head_bytes, range.size(), heads.kv_heads, dim,
                  dtype_.values, {}, to + tokens_ * dim, loaded.head_stride, unpacks_);
  }
  slot.used.record(unpacks_);
}

void LayerRows::add(const LayerHeads& heads, const DeviceRows& more, DeviceRows& rows,
                    cudaStream_t compute) const {
  // (The strides of heads may be above what a copy in two dimensions takes.)
  const auto copy = [&](const __nv_bfloat16* to, const __nv_bfloat16* from) {
    for (std::int64_t head = 0; head < heads.kv_heads; ++head) {
      auto* at = const_cast<__nv_bfloat16*>(to) +
                 head * rows.head_stride +  // memory of this object
                 rows.count * heads.head_dim;
      TOPKV_CUDA(cudaMemcpyAsync(
          at, from + head * more.head_stride,
          static_cast<std::size_t>(more.count * heads.head_dim) * sizeof(__nv_bfloat16),
          cudaMemcpyDeviceToDevice, compute));
    }
  };
  copy(rows.keys, more.keys);
  if (!heads.keys_are_values) copy(rows.values, more.values);
  rows.count += more.count;
}

void LayerRows::release(cudaStream_t compute) { used_.record(compute); }

}  // namespace topkv::gpu
