#include "src/session/selection_on_device.h"

#include <algorithm>
#include <vector>

#include "index/common/index_factory.h"
#include "src/device/compute_device.h"
#include "src/session/codes_on_device.h"

namespace topkv {

std::shared_ptr<const DeviceSelection> upload_key_summaries(const Device& device,
                                                            const AttentionShape& shape,
                                                            const SegmentIndex& index) {
  if (!device.is_cuda()) return nullptr;
  const std::shared_ptr<ComputeDevice>& compute = device.compute();
  const std::lock_guard lock(index.mutex);
  if (index.device == compute) return index.selection;
  std::vector<StandIns> heads;
  std::int64_t entries = 0;
  for (const LayerIndex& layer : index.layers) {
    for (const auto& head : layer.heads) {
      heads.push_back(head->stand_ins());
      if (heads.back().kind == StandInKind::none || heads.back().count == 0) return nullptr;
      entries = std::max(entries, heads.back().count);
    }
    if (layer.heads.empty()) heads.resize(heads.size() + static_cast<std::size_t>(shape.kv_heads));
  }
  if (!compute->selects(shape, entries)) return nullptr;
  try {
    index.selection = compute->keep_selection(shape, heads);  // throws before anything changes
  } catch (const OutOfMemory& error) {
    refuse_index(device, error);
  }
  index.device = compute;
  return index.selection;
}

std::int64_t device_selection_bytes(const AttentionShape& shape, const RetrievalOptions& options,
                                    std::int64_t tokens, const DeviceSizes& device) {
  const IndexSpec spec(options.index);
  spec.check_index();
  if (options.host_search || options.dense_layers >= shape.layers) return 0;
  const StandIns head = spec.factory().make()->planned_stand_ins(shape.head_dim, tokens);
  if (head.kind == StandInKind::none || !device.selects(shape, head.count)) return 0;
  return device.selection_bytes(shape, head);
}

std::int64_t device_index_bytes(const AttentionShape& shape, const RetrievalOptions& options,
                                std::int64_t tokens, const Device& device) {
  const DeviceSizes& sizes = *device.compute();
  return device_code_bytes(shape, options, tokens, sizes) +
         device_selection_bytes(shape, options, tokens, sizes);
}

}  // namespace topkv
