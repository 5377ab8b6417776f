#include "topkv/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/context/prefill_context.h"
#include "src/core/threads.h"
#include "src/store/row_store.h"
#include "topkv/error.h"

namespace topkv {

/// One index per (layer, KV head); null where a layer has a sliding window.
struct Context::IndexSet : GrownIndex {};

Context::Context(AttentionShape shape, std::shared_ptr<const RowStore> store,
                 std::vector<std::shared_ptr<const IndexSet>> indices)
    : shape_(std::move(shape)), store_(std::move(store)), indices_(std::move(indices)) {}

Context::~Context() = default;

std::int64_t Context::tokens() const { return store_->size(0); }

DType Context::dtype() const { return store_->dtype(); }

ContextMemory Context::memory() const {
  ContextMemory memory;
  memory.rows_bytes = store_->bytes();
  for (const auto& set : indices_) {
    for (const auto& index : set->heads) {
      if (index) memory.index_bytes += index->memory();
    }
  }
  return memory;
}

std::vector<std::string> Context::indices() const {
  std::vector<std::string> specs;
  for (const auto& set : indices_) specs.push_back(set->spec);
  return specs;
}

RowsView Context::rows(std::int64_t layer, std::int64_t kv_head) const {
  if (layer < 0 || layer >= shape_.layers || kv_head < 0 || kv_head >= shape_.kv_heads) {
    throw InvalidArgument(
        fmt::format("rows of layer {}, KV head {}: the context has {} layers of {} KV heads", layer,
                    kv_head, shape_.layers, shape_.kv_heads));
  }
  return store_->rows(layer, kv_head);
}

const KeyIndex& Context::index(std::string_view spec, std::int64_t layer,
                               std::int64_t kv_head) const {
  rows(layer, kv_head);  // checks layer and head
  for (const auto& set : indices_) {
    if (set->spec != spec) continue;
    const auto& index = set->heads[static_cast<std::size_t>(layer * shape_.kv_heads + kv_head)];
    if (index) return *index;
    throw InvalidArgument(
        fmt::format("layer {} attends a sliding window of {} tokens and so has no index", layer,
                    shape_.window_of(layer)));
  }
  throw InvalidArgument(
      fmt::format("the context has no index '{}', only {}; add it with with_index", spec,
                  fmt::join(indices(), ", ")));
}

std::shared_ptr<const Context> Context::with_index(std::string_view spec,
                                                   const ProgressFn& progress) const {
  auto indices = indices_;
  const auto known = this->indices();
  if (std::find(known.begin(), known.end(), spec) == known.end()) {
    auto set = std::make_shared<IndexSet>(IndexSet{make_indices(std::string(spec), shape_)});
    const std::int64_t total = shape_.layers * shape_.kv_heads;
    // As many heads at a time as there are threads, so that this thread can report between them.
    const std::int64_t wave = std::max<std::int64_t>(1, thread_count());
    for (std::int64_t begin = 0; begin < total; begin += wave) {
      const std::int64_t count = std::min(wave, total - begin);
      parallel_for(count, 1, [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t i = begin + from; i < begin + to; ++i) {
          if (!set->heads[i]) continue;
          set->heads[i]->add(store_->rows(i / shape_.kv_heads, i % shape_.kv_heads).keys());
          set->heads[i]->build();
        }
      });
      if (progress) progress({"index", "heads", begin + count, total});
    }
    indices.push_back(std::move(set));
  }
  return std::shared_ptr<const Context>(new Context(shape_, store_, std::move(indices)));
}

std::shared_ptr<const Context> PrefillContext::freeze(ContextBuilder& builder,
                                                      std::vector<GrownIndex> indices) {
  const auto exact = builder.freeze();
  auto sets = exact->indices_;
  for (GrownIndex& grown : indices) {
    sets.push_back(std::make_shared<Context::IndexSet>(Context::IndexSet{std::move(grown)}));
  }
  return std::shared_ptr<const Context>(new Context(exact->shape_, exact->store_, std::move(sets)));
}

}  // namespace topkv
