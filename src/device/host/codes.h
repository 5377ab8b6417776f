// A context's codes on the host, which scans them where they lie.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "index/codes/code_tail.h"
#include "index/codes/codes_index.h"
#include "src/device/device_index.h"
#include "topkv/view.h"

namespace topkv {

/// The codes of all layers and KV heads. It points to an index and its tail, and copies nothing.
class HostCodes final : public DeviceIndex {
 public:
  struct Head {
    const CodesIndex* index = nullptr;  ///< codes of keys; null: the layer has no index
    const CodeTail* tail = nullptr;     ///< codes of values; null: there is no tail
    RowsView rows;
  };

  /// heads: [layers x kv_heads]. The index, tail and rows that they point to outlive this.
  HostCodes(std::vector<Head> heads, std::int64_t kv_heads)
      : heads_(std::move(heads)), kv_heads_(kv_heads) {}

  bool has_codes() const override { return true; }
  std::int64_t memory() const override { return 0; }  // none of its own

  const Head& head(std::int64_t layer, std::int64_t kv_head) const {
    return heads_[static_cast<std::size_t>(layer * kv_heads_ + kv_head)];
  }

 private:
  std::vector<Head> heads_;
  std::int64_t kv_heads_;
};

}  // namespace topkv
