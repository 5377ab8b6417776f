#include "gpu/attention/layer_rows.h"

#include <algorithm>

#include "gpu/runtime/faults.h"

namespace topkv::gpu {
namespace {

constexpr std::int64_t alignment = 256;

/// The bytes of the rows of the layer that has most.
std::int64_t largest_layer(const AttentionShape& shape, KvDType dtype, std::int64_t tokens) {
  std::int64_t most = 0;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    if (!shape.attends_all(layer)) continue;
    most = std::max(most, tokens * shape.kv_heads_of(layer) * shape.row_bytes_of(layer, dtype));
  }
  return (most + alignment - 1) / alignment * alignment;
}

}  // namespace

std::int64_t LayerRows::bytes(const AttentionShape& shape, KvDType dtype, std::int64_t tokens) {
  const std::int64_t unpacked = largest_layer(shape, KvDType(), tokens);
  return unpacked + (in_blocks(dtype.keys) ? largest_layer(shape, dtype, tokens) : unpacked);
}

LayerRows::LayerRows(const AttentionShape& shape, KvDType dtype, std::int64_t tokens,
                     std::byte* memory)
    : dtype_(dtype),
      tokens_(tokens),
      unpacked_(in_blocks(dtype.keys) ? reinterpret_cast<__nv_bfloat16*>(memory) : nullptr) {
  std::byte* second = memory + largest_layer(shape, KvDType(), tokens);
  slots_[0].data = unpacked_ != nullptr ? second : memory;
  slots_[1].data = second;
}

DeviceRows LayerRows::load(const LayerHeads& heads, std::span<const RowsView> rows,
                           std::int64_t count, const StoredKeys& stored, cudaStream_t compute) {
  const std::int64_t dim = heads.head_dim;
  const bool has_values = !heads.keys_are_values;
  const std::int64_t key_bytes = tokens_ * vector_bytes(dtype_.keys, dim);
  const std::int64_t head_bytes =
      key_bytes + (has_values ? tokens_ * vector_bytes(dtype_.values, dim) : 0);
  if (unpacked_ == nullptr) slot_ = 1 - slot_;
  Slot& slot = slots_[slot_];
  slot.used.block(copies_);
  inject_copy_delay(copies_);
  for (std::int64_t head = 0; head < heads.kv_heads; ++head) {
    const RowsView& from = rows[static_cast<std::size_t>(head)];
    std::byte* to = slot.data + head * head_bytes;
    const auto copy = [&](std::byte* target, const KeyView& vectors) {
      if (count == 0) return;
      TOPKV_CUDA(cudaMemcpyAsync(target, vectors.key(0),
                                 static_cast<std::size_t>(count * vectors.stride_bytes),
                                 cudaMemcpyHostToDevice, copies_));
    };
    copy(to, from.keys);
    if (has_values) copy(to + key_bytes, from.values);
  }
  slot.arrived.record(copies_);
  slot.arrived.block(compute);

  DeviceRows loaded;
  loaded.head_stride = heads.vectors() * tokens_ * dim;
  loaded.count = count;
  auto* ready = reinterpret_cast<__nv_bfloat16*>(slot.data);
  if (unpacked_ != nullptr) {
    ready = unpacked_;
    unpack_blocks(slot.data, head_bytes, count, heads.kv_heads, dim, dtype_.keys,
                  stored.from(rows[0].keys.first_position), ready, loaded.head_stride, compute);
    if (has_values) {
      unpack_blocks(slot.data + key_bytes, head_bytes, count, heads.kv_heads, dim, dtype_.values,
                    {}, ready + tokens_ * dim, loaded.head_stride, compute);
    }
    slot.used.record(compute);
  }
  loaded.keys = ready;
  loaded.values = has_values ? ready + tokens_ * dim : ready;
  return loaded;
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

void LayerRows::release(cudaStream_t compute) {
  if (unpacked_ == nullptr) slots_[slot_].used.record(compute);
}

}  // namespace topkv::gpu
