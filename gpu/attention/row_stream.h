// Streams rows from host memory through tiles in device memory. Tiles are copied ahead on a stream
// of their own, while the compute stream works on the tile before.
//
// Two waits keep the order: work on a tile waits for its copy, and the copy into a slot waits for
// the work on the slot's last tile. Copies overlap with computation if the host memory is
// page-locked. From other memory they are correct, but slower. Rows in blocks (q8, q4) are copied
// as they are, and unpacked to bf16 on the compute stream.
//
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
#include "src/attention/block_attention.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv::gpu {

/// Returns the bytes of a token's rows in the layer that has most.
std::int64_t widest_rows(const AttentionShape& shape, KvDType dtype);

/// Begins to copy the keys or the values at the positions `range` from host memory to device
/// memory, where they lie one behind the other.
void copy_rows(const RowSpan& rows, KeyView RowsView::*half, const PositionRange& range,
               std::byte* to, cudaStream_t stream);

/// A ring of tiles.
class RowStream {
 public:
  static constexpr std::int64_t slots = 3;

  /// The device memory of the tiles, in bytes. It has room for the rows of every layer.
  static std::int64_t bytes(const AttentionShape& shape, KvDType dtype, std::int64_t tile_rows);

  /// memory: bytes(...) bytes of device memory, which must outlive it. dtype: bf16, or q8 and q4.
  RowStream(const AttentionShape& shape, KvDType dtype, std::int64_t tile_rows, std::byte* memory);

  /// Makes later copies wait for the event.
  void after(const Event& event) { event.block(copies_); }

  /// Waits for the copies begun. Returns true if all of them succeeded.
  bool wait() const { return cudaStreamSynchronize(copies_) == cudaSuccess; }

  /// Calls use(tile) for the rows at the positions `range`, tile by tile. heads: the heads of the
  /// rows' layer. rows: a span for each KV head. stored: the channels and the bias of the keys; its
  /// positions are those of the spans' first keys. Work that `use` gives to `compute` finds the
  /// rows of its tile. Returns before the work is done. The rows must stay valid until then.
  void stream(const LayerHeads& heads, std::span<const RowSpan> rows, PositionRange range,
              const StoredKeys& stored, cudaStream_t compute,
              const std::function<void(const DeviceRows&)>& use);

 private:
  struct Slot {
    std::byte* data = nullptr;  // [kv_heads, keys then values, tile_rows], as stored
    Event arrived;
    Event used;
  };

  KvDType dtype_;
  std::int64_t tile_rows_;
  __nv_bfloat16* unpacked_;  // [kv_heads, vectors, tile_rows, head_dim]; null: rows come in bf16
  std::vector<Slot> slots_;
  std::size_t next_ = 0;
  Stream copies_;
};

}  // namespace topkv::gpu
