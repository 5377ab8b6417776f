// A context's codes where the host scans them: where they lie.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "index/code_tail.h"
#include "index/codes_index.h"
#include "src/device/device_codes.h"
#include "topkv/view.h"

namespace topkv {

class HostCodes final : public DeviceCodes {
 public:
  struct Head {
    const CodesIndex* index = nullptr;  ///< null: the layer has none
    const CodeTail* tail = nullptr;     ///< null: none
    RowsView rows;
  };

  /// heads: [layers x kv_heads]; what they point to outlives this.
  HostCodes(std::vector<Head> heads, std::int64_t kv_heads)
      : heads_(std::move(heads)), kv_heads_(kv_heads) {}

  std::int64_t memory() const override { return 0; }  // none of its own

  const Head& head(std::int64_t layer, std::int64_t kv_head) const {
    return heads_[static_cast<std::size_t>(layer * kv_heads_ + kv_head)];
  }

 private:
  std::vector<Head> heads_;
  std::int64_t kv_heads_;
};

}  // namespace topkv
