// Codes of a context, or of a session's own rows, in the memory of a CUDA device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu/codes/code_scan.h"
#include "src/device/compute_device.h"
#include "src/device/device_index.h"

namespace topkv::gpu {

class CudaDevice;
class LongWork;

/// Immutable after construction. Const members are safe from many threads, except scan(), which the
/// holder of the device's lock calls.
class CudaCodes final : public DeviceIndex {
 public:
  /// Whether the kernels support this shape.
  static bool supports(const AttentionShape& shape);
  /// Implements ComputeDevice::keep_codes. REQUIRES: supports(shape).
  CudaCodes(CudaDevice& device, const AttentionShape& shape, std::span<const HeadCodes> heads);
  ~CudaCodes() override;

  bool has_codes() const override { return true; }
  std::int64_t memory() const override { return memory_.bytes(); }
  /// The device memory of such codes, in bytes (ComputeDevice::codes_bytes).
  static std::int64_t bytes(const AttentionShape& shape, std::int64_t tokens,
                            std::int64_t key_bytes, std::int64_t value_bits, std::int64_t rare);

  /// A scan of one layer without tokens. The caller adds the tokens and the number of rows wanted.
  /// All scans share their memory: enqueue a whole scan with list_rows before the next one.
  CodeScan scan(std::int64_t layer) const;
  /// The most tokens of a scan.
  int scan_tokens() const { return scan_tokens_; }
  /// The number of thread blocks of each head step that keeps the device busy, in a scan of
  /// `tokens` tokens.
  int splits(int tokens) const { return std::max(1, splits_ / tokens); }
  /// The number of rows of a head.
  std::int64_t tokens() const { return tokens_; }
  /// The rows of one head at the allowed positions.
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
