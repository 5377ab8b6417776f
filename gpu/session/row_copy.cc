#include "gpu/session/row_copy.h"

#include <algorithm>

#include "gpu/device.h"
#include "gpu/long_work.h"

namespace topkv::gpu {
namespace {

/// The bytes that some vectors take, so that the next ones begin where kernels read by words.
std::int64_t aligned_bytes(const KeyView& vectors, std::int64_t count) {
  constexpr std::int64_t alignment = 256;
  return (count * vectors.stride_bytes + alignment - 1) / alignment * alignment;
}

std::int64_t array_bytes(const RowStore& store, std::int64_t layer) {
  const RowsView rows = store.rows(layer, 0);
  return aligned_bytes(rows.keys, rows.count()) + aligned_bytes(rows.values, rows.count());
}

}  // namespace

CudaRowCopy::CudaRowCopy(CudaDevice& device, const AttentionShape& shape,
                         std::shared_ptr<const RowStore> store,
                         const std::vector<std::int64_t>& layers)
    : shape_(shape), store_(std::move(store)), layers_(layers) {
  const RowsView first = store_->rows(layers_[0], 0);
  key_bytes_ = first.keys.stride_bytes;
  value_bytes_ = first.values.stride_bytes;
  array_bytes_ = array_bytes(*store_, layers_[0]);
  LongWork work(device);
  {
    const auto lock = device.lock();
    memory_ =
        device.allocate(std::ssize(layers_) * shape_.kv_heads * array_bytes_, "rows of a context");
  }
  std::byte* to = memory_.data();
  for (const std::int64_t layer : layers_) {
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head, to += array_bytes_) {
      const RowsView rows = store_->rows(layer, head);
      work.copy_in(rows.keys.data, rows.count() * key_bytes_, to);
      work.copy_in(rows.values.data, rows.count() * value_bytes_,
                   to + aligned_bytes(rows.keys, rows.count()));
    }
  }
  work.wait();
}

std::int64_t CudaRowCopy::place(std::int64_t layer) const {
  const auto at = std::ranges::lower_bound(layers_, shape_.row_layer_of(layer));
  return at != layers_.end() && *at == shape_.row_layer_of(layer) ? at - layers_.begin() : -1;
}

ListedRows CudaRowCopy::rows(std::int64_t layer) const {
  const std::byte* of_layer = memory_.data() + place(layer) * shape_.kv_heads * array_bytes_;
  const RowsView rows = store_->rows(shape_.row_layer_of(layer), 0);
  ListedRows listed;
  listed.keys = of_layer;
  listed.values = of_layer + aligned_bytes(rows.keys, rows.count());
  listed.head_bytes = array_bytes_;
  listed.key_bytes = key_bytes_;
  listed.value_bytes = value_bytes_;
  listed.key_type = rows.keys.dtype;
  listed.value_type = rows.values.dtype;
  return listed;
}

std::vector<std::int64_t> layers_that_fit(const RowStore& store, const AttentionShape& shape,
                                          std::span<const std::int64_t> layers,
                                          std::int64_t budget) {
  std::vector<std::int64_t> fit;
  for (const std::int64_t layer : layers) {
    const std::int64_t bytes = shape.kv_heads * array_bytes(store, layer);
    if (bytes > budget) break;
    budget -= bytes;
    fit.push_back(layer);
  }
  return fit;
}

}  // namespace topkv::gpu
