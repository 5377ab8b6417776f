#include "src/context/index_build.h"

#include "index/common/index_factory.h"
#include "src/core/threads/run_with_progress.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// One whose heads serve an index of this spec as well; null: none.
const SegmentIndex* serving(const Segment& segment, const IndexSpec& spec) {
  for (const auto& index : segment.indices) {
    for (const LayerIndex& layer : index->layers) {
      if (layer.heads.empty()) continue;
      if (spec.factory().is_served_by(*layer.heads[0])) return index.get();
      break;  // all are alike
    }
  }
  return nullptr;
}

/// head: over all layers.
PrefillQueries queries_of(const Segment& segment, const AttentionShape& shape, std::int64_t head,
                          std::vector<float>& gathered, std::vector<std::int64_t>& positions) {
  if (!segment.queries) return {};
  return segment.queries->of(shape, head / shape.kv_heads, head % shape.kv_heads,
                             segment.tokens(head / shape.kv_heads), gathered, positions);
}

}  // namespace

std::shared_ptr<const SegmentIndex> build_index(const IndexSpec& spec, const AttentionShape& shape,
                                                const Segment& segment, const ProgressFn& progress,
                                                const Device& device) {
  const auto built = std::make_shared<SegmentIndex>(spec, shape);
  if (const SegmentIndex* other = serving(segment, spec); other != nullptr) {
    for (std::size_t l = 0; l < built->layers.size(); ++l)
      built->layers[l].heads = other->layers[l].heads;
    built->shared = true;
  }
  const bool building = !built->shared && built->keys(1) > 0;
  // For rows that a device can copy quickly, where there are codes to make.
  std::unique_ptr<CodeEncoder> encoder;
  if (building && spec.factory().traits().has_codes && segment.states->rows().is_locked()) {
    try {
      encoder = device.compute()->code_encoder(shape.head_dim);
    } catch (const OutOfMemory&) {  // the host's threads make them
    }
  }
  std::unique_ptr<Clusterer> clusterer;
  if (building && spec.factory().traits().has_clusters)
    clusterer = device.compute()->clusterer(shape.head_dim);
  const Accelerator accelerator{encoder.get(), clusterer.get()};
  const OneBlasThread one_blas_thread;  // not put back between the heads
  const auto work = [&](const std::stop_token& stop) {
    parallel_for(shape.layers * shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        LayerIndex& layer = built->layers[static_cast<std::size_t>(i / shape.kv_heads)];
        const auto head = static_cast<std::size_t>(i % shape.kv_heads);
        if (layer.heads.empty()) continue;
        KeyIndex& index = *layer.heads[head];
        const RowsView rows = segment.rows(i / shape.kv_heads, i % shape.kv_heads);
        if (!built->shared) spec.factory().build(index, rows.keys, accelerator, stop);
        if (!built->shared && spec.factory().traits().learns_queries) {
          std::vector<float> gathered;
          std::vector<std::int64_t> positions;
          spec.factory().learn(index, queries_of(segment, shape, i, gathered, positions), stop);
        }
        layer.tails[head] = spec.factory().make_tail(index, rows, accelerator, stop);
      }
    });
    if (built->shared || !spec.factory().traits().learns_queries) return;
    std::vector<KeyIndex*> heads;
    for (const LayerIndex& layer : built->layers) {
      for (const auto& head : layer.heads) heads.push_back(head.get());
    }
    spec.factory().learn_together(heads, stop);
  };
  if (!progress) {
    work({});
    return built;
  }
  const std::int64_t total = built->keys(segment.tokens(0));
  run_watched(work, [&] {
    const std::int64_t done = built->inserted();
    if (done < total) progress({"index", "keys", done, total});
  });
  progress({"index", "keys", total, total});
  return built;
}

}  // namespace topkv
