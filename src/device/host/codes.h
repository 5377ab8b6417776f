// A context's codes on the host, which scans them where they lie.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "index/codes/code_pass.h"
#include "src/device/device_index.h"

namespace topkv {

/// The codes of all layers and KV heads. It points to an index and its tail, and copies nothing.
class HostCodes final : public DeviceIndex {
 public:
  /// passes: [layers x kv_heads], without CodePass::wanted; a layer without codes has no index. The
  /// index, tail and rows that they point to outlive this.
  HostCodes(std::vector<CodePass> passes, std::int64_t kv_heads)
      : passes_(std::move(passes)), kv_heads_(kv_heads) {}

  bool has_codes() const override { return true; }
  std::int64_t memory() const override { return 0; }  // none of its own

  /// Returns the pass over the codes of a layer and KV head, which wants no rows yet.
  const CodePass& pass(std::int64_t layer, std::int64_t kv_head) const {
    return passes_[static_cast<std::size_t>(layer * kv_heads_ + kv_head)];
  }

 private:
  std::vector<CodePass> passes_;
  std::int64_t kv_heads_;
};

}  // namespace topkv
