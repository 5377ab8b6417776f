#include "gpu/session/context_window.h"

#include <algorithm>

#include "gpu/device.h"
#include "gpu/runtime/faults.h"
#include "gpu/runtime/handles.h"
#include "src/core/math/convert.h"
#include "src/core/math/row_format.h"
#include "src/device/pieces.h"

namespace topkv::gpu {

namespace {

/// Places the rows of all layers one behind the other, and returns the bytes of all. A layer
/// without rows has the place of the layer whose rows it attends.
std::int64_t place_rows(const SessionShape& shape, std::vector<LayerWindow>& layers) {
  const bool channels = RowStore::has_channels(shape.attention, shape.rows);
  const std::int64_t element = bytes_of(DType::bf16);
  Pieces pieces;
  for (LayerWindow& layer : layers) {
    const LayerHeads& heads = layer.heads;
    if (layer.has_rows) {
      const std::int64_t scales =
          channels ? heads.kv_heads * heads.head_dim * bytes_of(DType::f32) : 0;
      layer.rows_at = pieces.place(heads.elements(layer.context_rows.size()) * element);
      layer.sinks_at = pieces.place(heads.elements(layer.context_sinks) * element);
      layer.channels_at = pieces.place(scales);
      layer.bias_at = pieces.place(3 * scales);
      continue;
    }
    const LayerWindow& owner = layers[static_cast<std::size_t>(layer.row_layer)];
    layer.rows_at = owner.rows_at;
    layer.sinks_at = owner.sinks_at;
    layer.channels_at = owner.channels_at;
    layer.bias_at = owner.bias_at;
  }
  return pieces.used();
}

}  // namespace

std::int64_t ContextWindow::bytes(const SessionShape& shape) {
  std::vector<LayerWindow> layers = layer_windows(shape);
  return place_rows(shape, layers);
}

ContextWindow::ContextWindow(CudaDevice& device, const SessionShape& shape)
    : store_(shape.context),
      layers_(layer_windows(shape)),
      memory_(device.allocate(place_rows(shape, layers_), "context's window")) {
  const Stream& stream = device.compute_stream();
  inject_copy_delay(stream);
  for (std::int64_t l = 0; l < shape.attention.layers; ++l) {
    const LayerWindow& layer = layers_[static_cast<std::size_t>(l)];
    if (!layer.has_rows) continue;
    copy(l, layer.context_rows, at(layer.rows_at), stream);
    copy(l, {0, layer.context_sinks}, at(layer.sinks_at), stream);
    if (store_->channels(l) == nullptr) continue;
    const std::int64_t scales = layer.heads.head_dim * bytes_of(DType::f32);
    for (std::int64_t h = 0; h < layer.heads.kv_heads; ++h) {
      TOPKV_CUDA(cudaMemcpyAsync(memory_.data() + layer.channels_at + h * scales,
                                 store_->rows(l, h).keys.channels, static_cast<std::size_t>(scales),
                                 cudaMemcpyHostToDevice, stream));
    }
    if (store_->bias(l) == nullptr) continue;
    TOPKV_CUDA(cudaMemcpyAsync(memory_.data() + layer.bias_at, store_->bias(l),
                               static_cast<std::size_t>(layer.heads.kv_heads * 3 * scales),
                               cudaMemcpyHostToDevice, stream));
  }
  stream.synchronize();  // once: sessions to come find it there, whoever opens them
}

bool ContextWindow::suits(const SessionShape& shape) const {
  return shape.context == store_ &&
         std::ranges::equal(layer_windows(shape), layers_,
                            [](const LayerWindow& a, const LayerWindow& b) {
                              return a.context_rows.begin == b.context_rows.begin &&
                                     a.context_rows.end == b.context_rows.end &&
                                     a.context_sinks == b.context_sinks;
                            });
}

StoredKeys ContextWindow::stored_keys(std::int64_t layer) const {
  if (store_->channels(layer) == nullptr) return {};
  const auto at = [&](std::int64_t offset) {
    return reinterpret_cast<const float*>(memory_.data() + offset);
  };
  StoredKeys stored;
  stored.channels = at(of(layer).channels_at);
  if (store_->bias(layer) != nullptr) stored.bias = at(of(layer).bias_at);
  stored.chunk_len = store_->rows(layer, 0).keys.chunk_len;
  return stored;
}

/// Rows of positions `range` of all KV heads.
void ContextWindow::copy(std::int64_t layer, PositionRange range, __nv_bfloat16* to,
                         cudaStream_t stream) const {
  if (range.size() == 0) return;
  const LayerHeads& heads = of(layer).heads;
  const std::int64_t elements = range.size() * heads.head_dim;
  for (std::int64_t h = 0; h < heads.kv_heads; ++h) {
    const RowsView rows = store_->rows(layer, h);
    __nv_bfloat16* keys = to + heads.vectors() * h * elements;
    copy_as_bf16(rows.keys.part(range), keys, stream);
    if (!heads.keys_are_values) copy_as_bf16(rows.values.part(range), keys + elements, stream);
  }
}

void copy_as_bf16(const KeyView& from, __nv_bfloat16* to, cudaStream_t stream) {
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

}  // namespace topkv::gpu
