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

/// Of a layer with rows of its own.
std::int64_t row_bytes(const LayerWindow& layer, std::int64_t rows) {
  return layer.has_rows ? layer.heads.elements(rows) * bytes_of(DType::bf16) : 0;
}

/// Values lie behind the keys of `rows` slots.
template <class Element>
Element* values_of(const LayerHeads& heads, Element* keys, std::int64_t rows) {
  return heads.keys_are_values ? keys : keys + rows * heads.head_dim;
}

/// What does not grow: a word that kernels name in it what is not finite, and own sinks.
Pieces fixed_pieces(const std::vector<LayerWindow>& layers, std::vector<std::int64_t>& sinks_at) {
  Pieces pieces;
  pieces.place(sizeof(unsigned long long));
  for (const LayerWindow& layer : layers)
    sinks_at.push_back(pieces.place(row_bytes(layer, layer.own_sinks())));
  return pieces;
}

/// Own rows of all layers.
Pieces row_pieces(const std::vector<LayerWindow>& layers, std::int64_t capacity,
                  std::vector<std::int64_t>& rows_at) {
  Pieces pieces;
  for (const LayerWindow& layer : layers)
    rows_at.push_back(pieces.place(row_bytes(layer, std::min(capacity, layer.slots))));
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
      dtype_(shape.rows),
      own_first_(shape.context_tokens),
      layers_(layer_windows(shape)),
      context_(std::move(context)),
      memory_(memory),
      most_slots_(most_slots(layers_)) {
  fixed_pieces(layers_, sinks_at_);
  rows_at_.resize(layers_.size());
  ends_.assign(layers_.size(), own_first_);
}

std::int64_t ResidentRows::fixed_bytes(const SessionShape& shape) {
  std::vector<std::int64_t> sinks_at;
  return fixed_pieces(layer_windows(shape), sinks_at).used();
}

std::int64_t ResidentRows::most_bytes(const SessionShape& shape) {
  const std::vector<LayerWindow> layers = layer_windows(shape);
  const std::int64_t most = most_slots(layers);
  const auto bytes = [&](std::int64_t capacity) {
    std::vector<std::int64_t> rows_at;
    return row_pieces(layers, capacity, rows_at).used();
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
  Buffer more = device_.allocate(row_pieces(layers_, capacity, rows_at).used(), "session");
  inject_copy_delay(stream);
  for (std::size_t l = 0; l < rows_at.size() && capacity_ > 0 && begin > own_first_; ++l) {
    if (!layers_[l].has_rows) continue;
    const LayerHeads& heads = layers_[l].heads;
    const auto row = static_cast<std::size_t>(heads.head_dim * bytes_of(DType::bf16));
    const std::int64_t slots = layers_[l].slots;
    const std::int64_t had = std::min(capacity_, slots);
    const auto pitch = [&](std::int64_t of) { return static_cast<std::size_t>(of) * row; };
    TOPKV_CUDA(cudaMemcpy2DAsync(more.data() + rows_at[l], pitch(std::min(capacity, slots)),
                                 rows_.data() + rows_at_[l], pitch(had),
                                 pitch(std::min(had, begin - own_first_)),
                                 static_cast<std::size_t>(heads.kv_heads * heads.vectors()),
                                 cudaMemcpyDeviceToDevice, stream));
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
  put(layer, rows, {own_first_, std::min(end, window.kept_sinks)}, own_sinks(layer), stream);
  put(layer, rows, {std::max(own_first_, end - window.window), end}, own_rows(layer), stream);
}

/// Copies rows of positions `range`.
void ResidentRows::put(std::int64_t layer, std::span<const RowSpan> rows, PositionRange range,
                       const Block& to, cudaStream_t stream) const {
  const LayerHeads& heads = of(layer).heads;
  const std::int64_t d = heads.head_dim;
  for (std::int64_t p = range.begin; p < range.end;) {
    const std::int64_t slot = (p - own_first_) % to.slots;
    const std::int64_t count = std::min(range.end - p, to.slots - slot);
    for (std::int64_t head = 0; head < heads.kv_heads; ++head) {
      const RowSpan& from = rows[static_cast<std::size_t>(head)];
      const PositionRange part{p - from.first, p - from.first + count};
      __nv_bfloat16* keys = to.keys + (head * heads.vectors() * to.rows + slot) * d;
      copy_as_bf16(from.rows.keys.part(part), keys, stream);
      if (heads.keys_are_values) continue;
      copy_as_bf16(from.rows.values.part(part), keys + to.rows * d, stream);
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
  const LayerHeads& heads = of(layer).heads;
  const std::int64_t d = heads.head_dim;
  PackTarget target;
  target.keys = to.keys;
  target.values = values_of(heads, to.keys, to.rows);
  target.head_stride = heads.vectors() * to.rows * d;
  target.first = first - own_first_;
  target.ring = to.slots;
  if (!in_blocks(dtype_.keys)) {
    pack_rows(k, v, tokens, heads.kv_heads, d, target, bad, stream);
  } else {
    pack_blocks(k, v, tokens, heads.kv_heads, d, dtype_, stored_keys(layer).from(first), {}, target,
                bad, stream);
  }
}

/// Rows of positions `range`: of the context, of which there are `context_rows`, and behind them
/// own ones; or own ones alone, of which those that have come to the end of the slots go on at
/// their begin. (Not both: when own rows come to the end no window reaches the context.)
DeviceRows ResidentRows::rows_at(const LayerHeads& heads, PositionRange range,
                                 const __nv_bfloat16* of_context, PositionRange context_rows,
                                 const Block& own) const {
  const std::int64_t d = heads.head_dim;
  DeviceRows rows;
  rows.first = range.begin;
  rows.count = range.size();
  rows.keys_behind = own.keys;
  rows.values_behind = values_of(heads, own.keys, own.rows);
  rows.stride_behind = heads.vectors() * own.rows * d;
  if (range.begin < context_rows.end) {
    rows.keys = of_context + (range.begin - context_rows.begin) * d;
    rows.values = values_of(heads, rows.keys, context_rows.size());
    rows.head_stride = heads.vectors() * context_rows.size() * d;
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
                          const PartialView& partial, Into into, cudaStream_t stream) const {
  const LayerWindow& window = of(layer);
  const std::int64_t begin = window_begin(layer, queries.first);
  const PositionRange last = sees.within({begin, queries.first + added});
  if (into == Into::overwrite || last.size() > 0) {
    gpu::attend(
        window.heads, queries,
        rows_at(window.heads, last, context_->rows(layer), window.context_rows, own_rows(layer)),
        {true, window.dense ? 0 : window.window, window.sinks}, partial, into, stream);
  }
  const PositionRange sinks = sees.within({0, std::min(window.sinks, begin)});
  if (sinks.size() == 0) return;
  gpu::attend(window.heads, queries,
              rows_at(window.heads, sinks, context_->sinks(layer), {0, window.context_sinks},
                      own_sinks(layer)),
              {}, partial, Into::merge, stream);
}

}  // namespace topkv::gpu
