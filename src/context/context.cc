#include "topkv/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "index/index_kind.h"
#include "src/context/codes_on_device.h"
#include "src/context/index_growth.h"
#include "src/core/threads.h"
#include "src/store/row_store.h"
#include "topkv/error.h"

namespace topkv {

/// One index per (layer, KV head); null where a layer has a sliding window.
struct Context::IndexSet : GrownIndex {
  explicit IndexSet(GrownIndex index) : GrownIndex(std::move(index)) {}

  // What the last device that asked has of it.
  mutable std::mutex mutex;
  mutable std::shared_ptr<ComputeDevice> device;
  mutable std::shared_ptr<const DeviceCodes> codes;
};

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
    memory.index_bytes += set->shared ? set->tail_memory() : set->memory();
  }
  return memory;
}

std::int64_t Context::index_bytes(std::string_view spec) const { return get(spec).memory(); }

const Context::IndexSet& Context::get(std::string_view spec) const {
  const IndexSet* set = find(spec);  // a spec in normal form costs nothing more
  if (set == nullptr) set = find(IndexSpec(spec).text());
  if (set != nullptr) return *set;
  throw InvalidArgument(
      fmt::format("the context has no index '{}', only {}; add it with with_index", spec,
                  fmt::join(indices(), ", ")));
}

std::vector<std::string> Context::indices() const {
  std::vector<std::string> specs;
  for (const auto& set : indices_) specs.push_back(set->spec.text());
  return specs;
}

const Context::IndexSet* Context::find(std::string_view normal) const {
  const auto found = std::find_if(indices_.begin(), indices_.end(),
                                  [&](const auto& set) { return set->spec.text() == normal; });
  return found == indices_.end() ? nullptr : found->get();
}

/// One whose heads serve an index of this spec as well; null: none.
const Context::IndexSet* Context::serving(const IndexSpec& spec) const {
  for (const auto& set : indices_) {
    for (const auto& head : set->heads) {
      if (head == nullptr) continue;
      if (spec.kind().is_served_by(*head)) return set.get();
      break;  // all are alike
    }
  }
  return nullptr;
}

bool Context::has_index(std::string_view spec) const {
  return find(IndexSpec(spec).text()) != nullptr;
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
  const auto& index = get(spec).heads[static_cast<std::size_t>(layer * shape_.kv_heads + kv_head)];
  if (index) return *index;
  throw InvalidArgument(
      fmt::format("layer {} attends a sliding window of {} tokens and so has no index", layer,
                  shape_.window_of(layer)));
}

const RowTail* Context::tail(std::string_view spec, std::int64_t layer,
                             std::int64_t kv_head) const {
  const IndexSet* set = find(spec);
  if (set == nullptr) return nullptr;
  return set->tails[static_cast<std::size_t>(layer * shape_.kv_heads + kv_head)].get();
}

std::shared_ptr<const DeviceCodes> Context::codes_on(const Device& device,
                                                     std::string_view spec) const {
  const IndexSet& set = get(spec);
  const auto& compute = device.compute();
  if (!compute->scans_codes(shape_) || !can_be_scanned(set)) return nullptr;
  const std::lock_guard lock(set.mutex);
  if (set.device != compute) {
    set.codes = keep_codes(*compute, shape_, set, *store_);  // throws before anything changes
    set.device = compute;
  }
  return set.codes;
}

std::shared_ptr<const Context> Context::with_index(std::string_view text,
                                                   const ProgressFn& progress) const {
  const IndexSpec spec(text);
  auto indices = indices_;
  if (find(spec.text()) == nullptr) {
    spec.check(shape_.head_dim, tokens());
    const auto set = std::make_shared<IndexSet>(make_indices(spec, shape_));
    if (const IndexSet* other = serving(spec); other != nullptr) {
      set->heads = other->heads;
      set->shared = true;
    }
    const auto build = [&](const std::stop_token& stop) {
      parallel_for(shape_.layers * shape_.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          const auto at = static_cast<std::size_t>(i);
          KeyIndex* index = set->heads[at].get();
          if (index == nullptr) continue;
          const RowsView rows = store_->rows(i / shape_.kv_heads, i % shape_.kv_heads);
          if (!set->shared) {
            index->add(rows.keys(), stop);
            index->build(stop);
          }
          set->tails[at] = spec.kind().make_tail(*index, rows, stop);
        }
      });
    };
    if (progress) {
      build_watched(build, *set, tokens(), progress);
    } else {
      build({});
    }
    indices.push_back(set);
  }
  return std::shared_ptr<const Context>(new Context(shape_, store_, std::move(indices)));
}

std::shared_ptr<const Context> Context::with_grown(std::vector<GrownIndex> grown) const {
  auto indices = indices_;
  for (GrownIndex& index : grown) indices.push_back(std::make_shared<IndexSet>(std::move(index)));
  return std::shared_ptr<const Context>(new Context(shape_, store_, std::move(indices)));
}

}  // namespace topkv
