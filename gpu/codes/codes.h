// Codes of a context, or of a session's own rows, in a CUDA device's memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu/codes/code_scan.h"
#include "src/device/compute_device.h"
#include "src/device/device_codes.h"

namespace topkv::gpu {

class CudaDevice;
class LongWork;

/// After it is made: const members from any thread, scan() by whoever holds the device's lock.
class CudaCodes final : public DeviceCodes {
 public:
  /// Whether the kernels know this shape.
  static bool supports(const AttentionShape& shape);
  /// The contract of ComputeDevice::keep_codes. REQUIRES: supports(shape).
  CudaCodes(CudaDevice& device, const AttentionShape& shape, std::span<const HeadCodes> heads);
  ~CudaCodes() override;

  std::int64_t memory() const override { return memory_.bytes(); }
  /// What it would be (ComputeDevice::codes_bytes).
  static std::int64_t bytes(const AttentionShape& shape, std::int64_t tokens,
                            std::int64_t key_bytes, std::int64_t value_bits, std::int64_t rare);

  /// A scan of one layer for no token yet, all but what is wanted of it. All scans share their
  /// memory: one is to be enqueued whole (list_rows) before the next begins.
  CodeScan scan(std::int64_t layer) const;
  /// Tokens of a scan at most.
  int scan_tokens() const { return scan_tokens_; }
  /// So many blocks of each head step as keep the device busy with so many tokens.
  int splits(int tokens) const { return std::max(1, splits_ / tokens); }
  /// Rows of a head.
  std::int64_t tokens() const { return tokens_; }
  /// The rows of one head at these positions.
  ScanRange range(std::int64_t layer, std::int64_t kv_head, PositionRange allowed) const;

 private:
  struct Layout;
  void place(CudaDevice& device, const LongWork& work, std::int64_t layer,
             std::span<const HeadCodes> heads, const Layout& layout);
  template <class T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }

  AttentionShape shape_;
  std::unique_ptr<const Layout> layout_;
  int scan_tokens_ = 0;
  int splits_ = 0;  // for one token
  bool early_ = false;
  Buffer memory_;
  std::int64_t tokens_ = 0;
  std::vector<std::vector<std::int64_t>> rare_;  // [layers x kv_heads]: positions, ascending
};

}  // namespace topkv::gpu
