#include "topkv/context.h"

#include <fmt/format.h>

#include <utility>

#include "index/index_kind.h"
#include "src/context/segment.h"
#include "src/core/threads.h"
#include "src/core/watched.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// One whose heads serve an index of this spec as well; null: none.
const SegmentIndex* serving(const Segment& segment, const IndexSpec& spec) {
  for (const auto& index : segment.indices) {
    for (const LayerIndex& layer : index->layers) {
      if (layer.heads.empty()) continue;
      if (spec.kind().is_served_by(*layer.heads[0])) return index.get();
      break;  // all are alike
    }
  }
  return nullptr;
}

/// Over the rows of a segment, all heads in parallel.
std::shared_ptr<const SegmentIndex> build(const IndexSpec& spec, const AttentionShape& shape,
                                          const Segment& segment, const ProgressFn& progress,
                                          const Device& device) {
  const auto built = std::make_shared<SegmentIndex>(spec, shape);
  if (const SegmentIndex* other = serving(segment, spec); other != nullptr) {
    for (std::size_t l = 0; l < built->layers.size(); ++l)
      built->layers[l].heads = other->layers[l].heads;
    built->shared = true;
  }
  // For rows that a device can copy quickly, where there are codes to make.
  std::unique_ptr<CodeEncoder> encoder;
  const bool coded = spec.kind().is_coded() && !built->shared && built->keys(1) > 0;
  if (coded && segment.store->keeps()) encoder = device.compute()->code_encoder(shape.head_dim);
  const auto work = [&](const std::stop_token& stop) {
    parallel_for(shape.layers * shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        LayerIndex& layer = built->layers[static_cast<std::size_t>(i / shape.kv_heads)];
        const auto head = static_cast<std::size_t>(i % shape.kv_heads);
        if (layer.heads.empty()) continue;
        KeyIndex& index = *layer.heads[head];
        const RowsView rows = segment.rows(i / shape.kv_heads, i % shape.kv_heads);
        if (!built->shared) spec.kind().build(index, rows.keys(), encoder.get(), stop);
        layer.tails[head] = spec.kind().make_tail(index, rows, encoder.get(), stop);
      }
    });
  };
  if (!progress) {
    work({});
    return built;
  }
  const std::int64_t total = built->keys(segment.store->size(0));
  run_watched(work, [&] {
    const std::int64_t done = built->inserted();
    if (done < total) progress({"index", "keys", done, total});
  });
  progress({"index", "keys", total, total});
  return built;
}

}  // namespace

Context::Context(AttentionShape shape, Segment segment)
    : shape_(std::move(shape)), segment_(std::make_shared<const Segment>(std::move(segment))) {}

std::int64_t Context::tokens() const { return segment_->store->size(0); }

DType Context::dtype() const { return segment_->store->dtype(); }

ContextMemory Context::memory() const {
  ContextMemory memory;
  memory.rows_bytes = segment_->store->bytes();
  for (const auto& index : segment_->indices) memory.index_bytes += index->memory(!index->shared);
  return memory;
}

std::int64_t Context::index_bytes(std::string_view spec) const {
  return segment_->index(spec).memory(true);
}

std::vector<std::string> Context::indices() const { return segment_->specs(); }

bool Context::has_index(std::string_view spec) const {
  return segment_->find(IndexSpec(spec).text()) != nullptr;
}

RowsView Context::rows(std::int64_t layer, std::int64_t kv_head) const {
  if (layer < 0 || layer >= shape_.layers || kv_head < 0 || kv_head >= shape_.kv_heads) {
    throw InvalidArgument(
        fmt::format("rows of layer {}, KV head {}: the context has {} layers of {} KV heads", layer,
                    kv_head, shape_.layers, shape_.kv_heads));
  }
  return segment_->rows(layer, kv_head);
}

const KeyIndex& Context::index(std::string_view spec, std::int64_t layer,
                               std::int64_t kv_head) const {
  rows(layer, kv_head);  // checks layer and head
  const auto& heads = segment_->index(spec).layer(layer).heads;
  if (!heads.empty()) return *heads[static_cast<std::size_t>(kv_head)];
  throw InvalidArgument(
      fmt::format("layer {} attends a sliding window of {} tokens and so has no index", layer,
                  shape_.window_of(layer)));
}

std::shared_ptr<const Context> Context::with_index(std::string_view text,
                                                   const ProgressFn& progress,
                                                   const Device& device) const {
  const IndexSpec spec(text);
  Segment segment = *segment_;
  if (segment.find(spec.text()) == nullptr) {
    spec.check(shape_.head_dim, tokens());
    segment.indices.push_back(build(spec, shape_, segment, progress, device));
  }
  return std::shared_ptr<const Context>(new Context(shape_, std::move(segment)));
}

}  // namespace topkv
