// The rows of a context that its sessions have in device memory: the last ones, as far back as
// windows of later tokens reach, and the sinks. One copy for all sessions of a device whose windows
// are alike.
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

/// Begins to copy rows in host memory to device memory; of rows in blocks, what they stand for,
/// which waits for it.
void copy_as_bf16(const KeyView& from, __nv_bfloat16* to, cudaStream_t stream);

/// Never changes. Sessions own it together (CudaDevice::context_window); it keeps the context's
/// rows. Safe from many threads.
class ContextWindow {
 public:
  /// Copies the rows, on the device's compute stream, and waits for it; the caller holds the
  /// device's lock. Rows in blocks become what they stand for. Throws OutOfMemory, and Error where
  /// copying fails.
  ContextWindow(CudaDevice& device, const SessionShape& shape);

  /// Device memory of such rows.
  static std::int64_t bytes(const SessionShape& shape);

  /// Whether a session of this shape has these rows.
  bool suits(const SessionShape& shape) const;

  /// Of a layer: keys and values of LayerWindow::context_rows, [kv_heads, 2, rows, head_dim].
  const __nv_bfloat16* rows(std::int64_t layer) const { return at(place(layer).rows); }
  /// Likewise of the context's sinks.
  const __nv_bfloat16* sinks(std::int64_t layer) const { return at(place(layer).sinks); }
  /// What a layer's keys are stored with, from RoPE position 0 on; nothing but in q8 and q4.
  StoredKeys stored_keys(std::int64_t layer) const;

 private:
  struct Place {
    std::int64_t rows = 0, sinks = 0, channels = 0, bias = 0;  // bytes
  };
  struct Places {
    Places(const SessionShape& shape, const std::vector<LayerWindow>& layers);
    std::vector<Place> layers;
    std::int64_t bytes = 0;
  };

  const Place& place(std::int64_t layer) const {
    return places_.layers[static_cast<std::size_t>(layer)];
  }
  __nv_bfloat16* at(std::int64_t offset) const {
    return reinterpret_cast<__nv_bfloat16*>(memory_.data() + offset);
  }
  void copy(std::int64_t layer, PositionRange range, __nv_bfloat16* to, cudaStream_t stream) const;

  std::shared_ptr<const RowStore> store_;
  std::int64_t kv_heads_, head_dim_;
  std::vector<LayerWindow> layers_;
  Places places_;
  Buffer memory_;
};

}  // namespace topkv::gpu
