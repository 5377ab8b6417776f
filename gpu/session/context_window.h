// The rows of a context that its sessions hold in device memory: the sinks, and the last rows, as
// far back as the windows of later tokens reach. Sessions of one device with equal windows share
// one copy.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gpu/attention/row_blocks.h"
#include "gpu/session/session_layout.h"
#include "src/device/compute_device.h"
#include "src/store/row_store.h"

namespace topkv::gpu {

class CudaDevice;

/// Copies rows from host memory to device memory. Rows in blocks are unpacked to bf16, and the call
/// waits for their copy. Other copies are asynchronous.
void copy_as_bf16(const KeyView& from, __nv_bfloat16* to, cudaStream_t stream);

/// Immutable. Its sessions own it together (CudaDevice::context_window), and it keeps the context's
/// rows alive. Safe from many threads.
class ContextWindow {
 public:
  /// Copies the rows on the device's compute stream, and waits for the copies. Rows in blocks are
  /// unpacked to bf16. The caller holds the device's lock. Throws OutOfMemory, and Error when a
  /// copy fails.
  ContextWindow(CudaDevice& device, const SessionShape& shape);

  /// The device memory of the rows, in bytes.
  static std::int64_t bytes(const SessionShape& shape);

  /// Whether a session of this shape needs exactly these rows.
  bool suits(const SessionShape& shape) const;

  /// The keys and values of LayerWindow::context_rows of a layer, [kv_heads, vectors, rows,
  /// head_dim].
  const __nv_bfloat16* rows(std::int64_t layer) const { return at(of(layer).rows_at); }
  /// The keys and values of the context's sinks of a layer, [kv_heads, vectors,
  /// context_sinks, head_dim].
  const __nv_bfloat16* sinks(std::int64_t layer) const { return at(of(layer).sinks_at); }
  /// The channels and the bias of a layer's stored keys, from RoPE position 0 on. Empty unless rows
  /// are stored in q8 or q4.
  StoredKeys stored_keys(std::int64_t layer) const;

 private:
  const LayerWindow& of(std::int64_t layer) const {
    return layers_[static_cast<std::size_t>(layer)];
  }
  __nv_bfloat16* at(std::int64_t offset) const {
    return reinterpret_cast<__nv_bfloat16*>(memory_.data() + offset);
  }
  void copy(std::int64_t layer, PositionRange range, __nv_bfloat16* to, cudaStream_t stream) const;

  std::shared_ptr<const RowStore> store_;
  std::vector<LayerWindow> layers_;
  Buffer memory_;
};

}  // namespace topkv::gpu
