// Memory that work needs on a CUDA device. The numbers hold for an open device, and for a plan
// without a device.
#pragma once

#include <cstdint>

#include "gpu/attention/attention.h"
#include "gpu/attention/prefill.h"
#include "gpu/codes/codes.h"
#include "gpu/codes/scan_workspace.h"
#include "gpu/entries/cuda_summaries.h"
#include "gpu/network/elementwise.h"
#include "gpu/runtime/arena.h"
#include "gpu/runtime/cublas.h"
#include "gpu/session/decode.h"
#include "src/device/device_sizes.h"

namespace topkv::gpu {

inline constexpr std::int64_t mib = 1 << 20;
/// A reserve for code that CUDA and cuBLAS load when a kernel is first used, and for pages that
/// small allocations do not fill. Nothing counts these bytes as they come.
inline constexpr std::int64_t lazy_code_bytes = 192 * mib;
/// An estimate of the memory of the CUDA context and of cuBLAS's handle, for drivers that do not
/// report it: the measured size on other devices, rounded up.
inline constexpr std::int64_t unmeasured_libraries_bytes = 768 * mib;
/// The most token ids in one copy.
inline constexpr std::int64_t embed_tokens = 8192;
/// The memory for rows of packed weights that are unpacked for one product. It is large enough to
/// fill the device, and small enough to stay mostly in its L2 cache.
inline constexpr std::int64_t unpacked_bytes = 64 * mib;

/// Implements the sizes of a CUDA device. Base: DeviceSizes or ComputeDevice.
template <class Base>
class WithCudaSizes : public Base {
 public:
  bool is_cuda() const final { return true; }
  DType operand_dtype() const final { return DType::bf16; }
  std::int64_t prefill_chunk() const final { return 8192; }
  std::int64_t base_bytes() const final {
    return unmeasured_libraries_bytes + lazy_code_bytes +
           allocation_bytes(Cublas::workspace_bytes) +
           allocation_bytes(embed_tokens * std::int64_t{sizeof(Token)}) +
           allocation_bytes(argmax_scratch_bytes()) + allocation_bytes(sizeof(Token));
  }
  std::int64_t allocation_bytes(std::int64_t bytes) const final {
    return Arena::most_counted(bytes);
  }
  std::int64_t upload_bytes(const Matrix& host) const final {
    return host.out_features * host.in_features * bytes_of(DType::bf16);
  }
  std::int64_t packed_bytes() const override { return unpacked_bytes; }
  /// Whether both keys and values are in bf16, or both are in blocks (q8, q4).
  bool takes_rows(KvDType dtype) const final {
    return dtype == DType::bf16 || (in_blocks(dtype.keys) && in_blocks(dtype.values));
  }
  void check_heads(const AttentionShape& shape) const final { gpu::check_supported(shape); }
  std::int64_t prefill_attention_bytes(const AttentionShape& shape,
                                       const PrefillVisibility& visible, KvDType rows,
                                       std::int64_t chunk, std::int64_t tokens) const final {
    return gpu::prefill_attention_bytes(shape, visible, rows, chunk, tokens);
  }
  bool scans_codes(const AttentionShape& shape) const final { return CudaCodes::supports(shape); }
  std::int64_t codes_bytes(const AttentionShape& shape, std::int64_t tokens, std::int64_t key_bytes,
                           std::int64_t value_bits, std::int64_t rare) const final {
    return CudaCodes::bytes(shape, tokens, key_bytes, value_bits, rare);
  }
  /// Assumes a device with clusters of thread blocks. CudaDevice overrides it.
  bool selects(const AttentionShape& shape, std::int64_t entries) const override {
    return CudaSummaries::supports(shape, entries, std::int64_t{1} << 18);
  }
  std::int64_t selection_bytes(const AttentionShape& shape, const KeySummaries& head) const final {
    return CudaSummaries::bytes(shape, head);
  }
  std::int64_t scan_bytes(const SessionShape& shape) const final {
    return ScanLayout(shape, 1).device_bytes;
  }
  std::int64_t decode_backend_bytes(const SessionShape& shape) const final {
    return gpu::decode_backend_bytes(shape);
  }
};

}  // namespace topkv::gpu
