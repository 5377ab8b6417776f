#include "gpu/session/resident_rows.h"

#include <algorithm>
#include <utility>

#include "gpu/attention/row_blocks.h"
#include "gpu/device.h"
#include "gpu/runtime/faults.h"
#include "gpu/runtime/handles.h"
#include "src/device/pieces.h"

namespace topkv::gpu {
namespace {

constexpr std::int64_t least_rows = 16;  // that there is room for, where there is some

std::int64_t most_slots(const std::vector<LayerWindow>& layers) {
  std::int64_t most = 0;
  for (const LayerWindow& layer : layers) most = std::max(most, layer.slots);
  return most;
}

/// K and V of so many rows of a layer.
std::int64_t row_bytes(const AttentionShape& shape, std::int64_t rows) {
  return shape.kv_heads * 2 * rows * shape.head_dim * bytes_of(DType::bf16);
}

/// What does not grow: a word that kernels name in it what is not finite, and own sinks.
Pieces fixed_pieces(const AttentionShape& shape, const std::vector<LayerWindow>& layers,
                    std::vector<std::int64_t>& sinks_at) {
  Pieces pieces;
  pieces.place(sizeof(unsigned long long));
  for (const LayerWindow& layer : layers)
    sinks_at.push_back(pieces.place(layer.has_rows ? row_bytes(shape, layer.own_sinks()) : 0));
  return pieces;
}

/// Own rows of all layers.
Pieces row_pieces(const AttentionShape& shape, const std::vector<LayerWindow>& layers,
                  std::int64_t capacity, std::vector<std::int64_t>& rows_at) {
  Pieces pieces;
  for (const LayerWindow& layer : layers)
    rows_at.push_back(
        pieces.place(layer.has_rows ? row_bytes(shape, std::min(capacity, layer.slots)) : 0));
  return pieces;
}

/// Rows that there is to be room for, so that so many have some: halves of the most, so that the
/// last time that more is taken there is no more than half as much beside it.
std::int64_t capacity_for(std::int64_t rows, std::int64_t most) {
  std::int64_t capacity = most;
  while ((capacity + 1) / 2 >= std::max(rows, least_rows)) capacity = (capacity + 1) / 2;
  return capacity;
}

}  // namespace

ResidentRows::ResidentRows(CudaDevice& device, const SessionShape& shape,
                           std::shared_ptr<const ContextWindow> context, std::byte* memory)
    : device_(device),
      shape_(shape.attention),
      dtype_(shape.rows),
      own_first_(shape.context_tokens),
      layers_(layer_windows(shape)),
      context_(std::move(context)),
      memory_(memory),
      most_slots_(most_slots(layers_)) {
  fixed_pieces(shape_, layers_, sinks_at_);
  rows_at_.resize(layers_.size());
  ends_.assign(layers_.size(), own_first_);
}

std::int64_t ResidentRows::fixed_bytes(const SessionShape& shape) {
  std::vector<std::int64_t> sinks_at;
  return fixed_pieces(shape.attention, layer_windows(shape), sinks_at).used();
}

std::int64_t ResidentRows::most_bytes(const SessionShape& shape) {
  const std::vector<LayerWindow> layers = layer_windows(shape);
  const std::int64_t most = most_slots(layers);
  const auto bytes = [&](std::int64_t capacity) {
    std::vector<std::int64_t> rows_at;
    return row_pieces(shape.attention, layers, capacity, rows_at).used();
  };
  return bytes(most) + bytes((most + 1) / 2);
}

std::int64_t ResidentRows::window_begin(std::int64_t layer, std::int64_t first) const {
  return CausalWindow{of(layer).window, 0}.begin(first);
}

bool ResidentRows::has_window(std::int64_t layer, std::int64_t first) const {
  const std::int64_t begin = std::max(own_first_, window_begin(layer, first));
  return ends_[static_cast<std::size_t>(of(layer).row_layer)] - begin <= of(layer).slots;
}

void ResidentRows::reserve(std::int64_t begin, std::int64_t end, cudaStream_t stream) {
  const std::int64_t rows = std::min(end - own_first_, most_slots_);
  if (rows <= capacity_) return;
  const std::int64_t capacity = capacity_for(rows, most_slots_);
  std::vector<std::int64_t> rows_at;
  Buffer more = device_.allocate(row_pieces(shape_, layers_, capacity, rows_at).used(), "session");
  const auto row = static_cast<std::size_t>(shape_.head_dim * bytes_of(DType::bf16));
  inject_copy_delay(stream);
  for (std::size_t l = 0; l < rows_at.size() && capacity_ > 0 && begin > own_first_; ++l) {
    if (!layers_[l].has_rows) continue;
    const std::int64_t slots = layers_[l].slots;
    const std::int64_t had = std::min(capacity_, slots);
    const auto pitch = [&](std::int64_t of) { return static_cast<std::size_t>(of) * row; };
    TOPKV_CUDA(cudaMemcpy2DAsync(
        more.data() + rows_at[l], pitch(std::min(capacity, slots)), rows_.data() + rows_at_[l],
        pitch(had), pitch(std::min(had, begin - own_first_)),
        static_cast<std::size_t>(shape_.kv_heads * 2), cudaMemcpyDeviceToDevice, stream));
  }
  rows_ = std::move(more);  // what it was is free when its copies are made (arena.h)
  rows_at_ = std::move(rows_at);
  capacity_ = capacity;
}

ResidentRows::Block ResidentRows::own_rows(std::int64_t layer) const {
  const std::int64_t slots = of(layer).slots;
  std::byte* at = rows_.data() + rows_at_[static_cast<std::size_t>(of(layer).row_layer)];
  return {reinterpret_cast<__nv_bfloat16*>(at), std::min(capacity_, slots), slots};
}

ResidentRows::Block ResidentRows::own_sinks(std::int64_t layer) const {
  const std::int64_t sinks = of(layer).own_sinks();
  std::byte* at = memory_ + sinks_at_[static_cast<std::size_t>(of(layer).row_layer)];
  return {reinterpret_cast<__nv_bfloat16*>(at), sinks, sinks};
}

/// Sinks, then as many of the last rows as any window of later tokens reaches back to.
void ResidentRows::load(std::int64_t layer, std::span<const RowSpan> rows, cudaStream_t stream) {
  const LayerWindow& window = of(layer);
  if (!window.has_rows) return;  // its rows are loaded with the layer that has them
  const std::int64_t end = rows[0].end();
  ends_[static_cast<std::size_t>(layer)] = end;
  put(rows, {own_first_, std::min(end, window.kept_sinks)}, own_sinks(layer), stream);
  put(rows, {std::max(own_first_, end - window.window), end}, own_rows(layer), stream);
}

/// Copies rows of positions `range`.
void ResidentRows::put(std::span<const RowSpan> rows, PositionRange range, const Block& to,
                       cudaStream_t stream) const {
  const std::int64_t d = shape_.head_dim;
  for (std::int64_t p = range.begin; p < range.end;) {
    const std::int64_t slot = (p - own_first_) % to.slots;
    const std::int64_t count = std::min(range.end - p, to.slots - slot);
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      const auto& [from, first] = rows[static_cast<std::size_t>(head)];
      __nv_bfloat16* keys = to.keys + (head * 2 * to.rows + slot) * d;
      copy_as_bf16(from.keys.part({p - first, p - first + count}), keys, stream);
      copy_as_bf16(from.values.part({p - first, p - first + count}), keys + to.rows * d, stream);
    }
    p += count;
  }
}

/// Sinks are kept apart, for the window's places are taken again. What cannot be stored is found on
/// the host, which keeps the rows for good.
void ResidentRows::add(std::int64_t layer, const float* k, const float* v, std::int64_t tokens,
                       std::int64_t first, cudaStream_t stream) {
  ends_[static_cast<std::size_t>(layer)] = first + tokens;
  pack(layer, k, v, tokens, first, own_rows(layer), stream);
  const std::int64_t sinks = std::min(tokens, of(layer).kept_sinks - first);
  if (sinks > 0) pack(layer, k, v, sinks, first, own_sinks(layer), stream);
}

void ResidentRows::pack(std::int64_t layer, const float* k, const float* v, std::int64_t tokens,
                        std::int64_t first, const Block& to, cudaStream_t stream) const {
  auto* bad = reinterpret_cast<unsigned long long*>(memory_);
  const std::int64_t d = shape_.head_dim;
  PackTarget target;
  target.keys = to.keys;
  target.values = to.keys + to.rows * d;
  target.head_stride = 2 * to.rows * d;
  target.first = first - own_first_;
  target.ring = to.slots;
  if (!in_blocks(dtype_.keys)) {
    pack_rows(k, v, tokens, shape_.kv_heads, d, target, bad, stream);
  } else {
    pack_blocks(k, v, tokens, shape_.kv_heads, d, dtype_, stored_keys(layer).from(first), {},
                target, bad, stream);
  }
}

/// Rows of positions `range`: of the context, of which there are `context_rows`, and behind them
/// own ones; or own ones alone, of which those that have come to the end of the slots go on at
/// their begin. (Not both: when own rows come to the end no window reaches the context.)
DeviceRows ResidentRows::rows_at(PositionRange range, const __nv_bfloat16* of_context,
                                 PositionRange context_rows, const Block& own) const {
  const std::int64_t d = shape_.head_dim;
  DeviceRows rows;
  rows.first = range.begin;
  rows.count = range.size();
  rows.keys_behind = own.keys;
  rows.values_behind = own.keys + own.rows * d;
  rows.stride_behind = 2 * own.rows * d;
  if (range.begin < context_rows.end) {
    rows.keys = of_context + (range.begin - context_rows.begin) * d;
    rows.values = rows.keys + context_rows.size() * d;
    rows.head_stride = 2 * context_rows.size() * d;
    rows.split = context_rows.end - range.begin;
  } else if (rows.count > 0) {
    const std::int64_t slot = (range.begin - own_first_) % own.slots;
    rows.keys = rows.keys_behind + slot * d;
    rows.values = rows.values_behind + slot * d;
    rows.head_stride = rows.stride_behind;
    rows.split = own.slots - slot;
  }
  return rows;
}

/// Sinks before the window's rows, and the window with the new ones: two disjoint sets.
void ResidentRows::attend(std::int64_t layer, std::int64_t added,
                          const QueryView<__nv_bfloat16>& queries, const PositionRange& sees,
                          const PartialView& partial, cudaStream_t stream) const {
  const LayerWindow& window = of(layer);
  const std::int64_t begin = window_begin(layer, queries.first);
  const PositionRange last = sees.within({begin, queries.first + added});
  gpu::attend(
      shape_, queries, rows_at(last, context_->rows(layer), window.context_rows, own_rows(layer)),
      {true, window.dense ? 0 : window.window, window.sinks}, partial, Into::overwrite, stream);
  const PositionRange sinks = sees.within({0, std::min(window.sinks, begin)});
  if (sinks.size() == 0) return;
  gpu::attend(shape_, queries,
              rows_at(sinks, context_->sinks(layer), {0, window.context_sinks}, own_sinks(layer)),
              {}, partial, Into::merge, stream);
}

}  // namespace topkv::gpu
