#include "src/context/index_on_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "index/common/index_factory.h"
#include "src/device/compute_device.h"
#include "src/device/host/codes.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t most_scanned = std::int64_t{1} << 30;  // keys: a device counts in 32 bits

/// Returns the tail of a head that is made of codes. Null: there is no tail.
const CodeTail* code_tail(const LayerIndex& layer, std::size_t head) {
  return layer.tails[head] ? layer.tails[head]->code_tail() : nullptr;
}

/// Whether these are codes that are scanned, of at most so many bytes a key and bits a value.
bool can_be_scanned(const SegmentIndex& index, std::int64_t most_bytes, std::int64_t most_bits) {
  for (const LayerIndex& layer : index.layers) {
    for (std::size_t head = 0; head < layer.heads.size(); ++head) {
      const auto* codes = layer.heads[head]->codes_index();
      if (codes == nullptr || codes->size() == 0 || codes->size() > most_scanned ||
          codes->coder().bytes() > most_bytes) {
        return false;
      }
      const CodeTail* tail = code_tail(layer, head);
      if (tail != nullptr && tail->coder().bits() > most_bits) return false;
    }
  }
  return true;
}

std::shared_ptr<const DeviceIndex> codes_on_host(const AttentionShape& shape,
                                                 const Segment& segment,
                                                 const SegmentIndex& index) {
  constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
  if (!can_be_scanned(index, any, any)) return nullptr;
  std::vector<CodePass> passes;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    const LayerIndex& layer = index.layer(l);
    for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
      CodePass& pass = passes.emplace_back();
      if (layer.heads.empty()) continue;
      const auto at = static_cast<std::size_t>(h);
      pass = {.index = layer.heads[at]->codes_index(),
              .tail = code_tail(layer, at),
              .rows = segment.rows(l, h),
              .group = shape.group(),
              .scale = shape.softmax_scale(),
              .softcap = shape.softcap};
    }
  }
  return std::make_shared<HostCodes>(std::move(passes), shape.kv_heads);
}

std::shared_ptr<const DeviceIndex> copy_codes(ComputeDevice& device, const AttentionShape& shape,
                                              const Segment& segment, const SegmentIndex& index) {
  if (!device.scans_codes(shape) || !can_be_scanned(index, most_code_bytes, most_value_bits))
    return nullptr;
  std::vector<HeadCodes> heads(static_cast<std::size_t>(shape.layers * shape.kv_heads));
  for (std::int64_t i = 0; i < std::ssize(heads); ++i) {
    const LayerIndex& layer = index.layers[static_cast<std::size_t>(i / shape.kv_heads)];
    const auto head = static_cast<std::size_t>(i % shape.kv_heads);
    if (layer.heads.empty()) continue;
    heads[static_cast<std::size_t>(i)] =
        codes_of(*layer.heads[head]->codes_index(), code_tail(layer, head),
                 segment.rows(i / shape.kv_heads, i % shape.kv_heads));
  }
  return device.keep_codes(shape, heads);
}

std::shared_ptr<const DeviceIndex> copy_summaries(ComputeDevice& device,
                                                  const AttentionShape& shape,
                                                  const SegmentIndex& index) {
  std::vector<KeySummaries> heads;
  std::int64_t entries = 0;
  for (const LayerIndex& layer : index.layers) {
    for (const auto& head : layer.heads) {
      heads.push_back(head->key_summaries());
      if (heads.back().kind == KeySummaryKind::none || heads.back().count == 0) return nullptr;
      entries = std::max(entries, heads.back().count);
    }
    if (layer.heads.empty()) heads.resize(heads.size() + static_cast<std::size_t>(shape.kv_heads));
  }
  return device.selects(shape, entries) ? device.keep_selection(shape, heads) : nullptr;
}

}  // namespace

HeadCodes codes_of(const CodesIndex& index, const CodeTail* tail, const RowsView& rows) {
  const auto size = [&](std::int64_t count) {
    return static_cast<std::size_t>(count * rows.dim());
  };
  HeadCodes head;
  head.rows = rows;
  if (rows.count() == 0) return head;
  head.keys = index.codes();
  head.key_bytes = index.coder().bytes();
  head.rare = index.rare();
  head.slots.resize(size(4 * head.key_bytes));
  head.middle.resize(size(1));
  head.errors.resize(size(rows.dim()));
  index.coder().linear(head.slots.data(), head.middle.data(), head.errors.data());
  if (tail == nullptr) return head;
  const ValueCoder& values = tail->coder();
  head.values = tail->codes();
  head.value_lanes = values.lanes();
  head.value_bits = values.bits();
  head.value_variance = values.variance();
  head.value_error_variance = values.error_variance();
  head.shared_form = tail->shared_form();
  head.shared_unit = tail->shared_unit();
  head.value_axes.resize(size(values.bits()));
  head.value_base.resize(size(1));
  values.linear(head.value_axes.data(), head.value_base.data());
  return head;
}

std::shared_ptr<const DeviceIndex> upload_index(const Device& device, const AttentionShape& shape,
                                                const Segment& segment, const SegmentIndex& index) {
  const bool codes = index.spec.factory().traits().has_codes;
  if (!device.is_cuda()) return codes ? codes_on_host(shape, segment, index) : nullptr;
  const std::shared_ptr<ComputeDevice>& compute = device.compute();
  const std::lock_guard lock(index.mutex);
  if (index.device == compute) return index.on_device;
  try {
    auto copy = codes ? copy_codes(*compute, shape, segment, index)
                      : copy_summaries(*compute, shape, index);
    if (!copy) return nullptr;
    index.on_device = std::move(copy);
  } catch (const OutOfMemory& error) {
    throw OutOfMemory(
        fmt::format("memory of {} for the codes, or other key summaries, of a context",
                    device.name()),
        error.wanted_bytes(), error.available_bytes(),
        fmt::format(
            "raise the device's ceiling (--gpu-mem), end other programs that use it, use fewer "
            "tokens, or search on the host with host_search (--kv-host-search); found: {}",
            error.what()));
  }
  index.device = compute;
  return index.on_device;
}

bool can_use_scan(const RetrievalOptions& options) {
  const bool none = options.tail == no_tail;
  const bool own =
      options.tail.empty() || (!none && IndexSpec(options.tail) == IndexSpec(options.index));
  return options.select_by == SelectBy::query_head && !options.guarantee && (own || none);
}

std::int64_t device_index_bytes(const AttentionShape& shape, const RetrievalOptions& options,
                                std::int64_t tokens, const DeviceSizes& device) {
  const IndexSpec spec(options.index);
  spec.check_index();
  if (options.host_search || options.dense_layers >= shape.layers) return 0;
  const auto index = spec.factory().make();
  if (const CodesIndex* codes = index->codes_index(); codes != nullptr) {
    const std::int64_t key_bytes = codes->params().bytes_of_key(shape.head_dim);
    const std::int64_t value_bits = codes->params().bits_of_value(shape.head_dim);
    if (!can_use_scan(options) || !device.scans_codes(shape) || tokens > most_scanned ||
        key_bytes > most_code_bytes || value_bits > most_value_bits) {
      return 0;
    }
    return device.codes_bytes(shape, tokens, key_bytes, value_bits,
                              (tokens - 1) / CodesIndex::keys_per_rare + 1);
  }
  const KeySummaries head = index->planned_key_summaries(shape.head_dim, tokens);
  if (head.kind == KeySummaryKind::none || !device.selects(shape, head.count)) return 0;
  return device.selection_bytes(shape, head);
}

std::int64_t device_index_bytes(const AttentionShape& shape, const RetrievalOptions& options,
                                std::int64_t tokens, const Device& device) {
  return device_index_bytes(shape, options, tokens, *device.compute());
}

}  // namespace topkv
