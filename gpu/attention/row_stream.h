// Rows of host memory on their way through the device: tiles are copied ahead, on a stream of their
// own, while the compute stream works on the tile before.
//
// Two kinds of waits hold the order: work on a tile waits for its copy, and the copy into a slot
// waits for the work on what was there. Copies run beside computation when the host memory is
// page-locked; from other memory they are right, but slower.
// Rows in blocks (q8, q4) are copied as they are and unpacked to bf16 on the compute stream.
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gpu/attention/attention.h"
#include "gpu/attention/row_blocks.h"
#include "gpu/runtime/handles.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv::gpu {

class RowStream {
 public:
  static constexpr std::int64_t slots = 3;

  /// Device memory of its tiles.
  static std::int64_t bytes(std::int64_t kv_heads, std::int64_t head_dim, KvDType dtype,
                            std::int64_t tile_rows);

  /// memory: bytes(...) of device memory, which outlives it.
  /// dtype: bf16, or q8 and q4.
  RowStream(std::int64_t kv_heads, std::int64_t head_dim, KvDType dtype, std::int64_t tile_rows,
            std::byte* memory);

  /// Copies from now on wait for what was recorded.
  void after(const Event& event) { event.block(copies_); }

  /// Waits for the copies begun so far; true when all ended well.
  bool wait() const { return cudaStreamSynchronize(copies_) == cudaSuccess; }

  /// Calls use(tile) for rows `range` of the views (per KV head; row i of a view is position i),
  /// tile by tile. stored: channels and bias of the views' keys; their positions are the views'.
  /// What use gives to `compute` finds the tile's rows in place. Returns before any of that is
  /// done; the rows must stay until it is.
  void stream(std::span<const RowsView> rows, PositionRange range, const StoredKeys& stored,
              cudaStream_t compute, const std::function<void(const DeviceRows&)>& use);

 private:
  struct Slot {
    std::byte* data = nullptr;  // [kv_heads, keys then values, tile_rows], as stored
    Event arrived;
    Event used;
  };

  std::int64_t kv_heads_;
  std::int64_t head_dim_;
  KvDType dtype_;
  std::int64_t tile_rows_;
  __nv_bfloat16* unpacked_;  // [kv_heads, 2, tile_rows, head_dim]; null: rows come in bf16
  std::vector<Slot> slots_;
  std::size_t next_ = 0;
  Stream copies_;
};

}  // namespace topkv::gpu
