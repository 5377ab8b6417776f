// All rows of one layer in device memory as bf16, for attention that meets them in any order. They
// are copied from host memory on a stream of their own, while the compute stream works on what
// lies between the attention of two layers.
//
// Rows in blocks (q8, q4) arrive some at a time as they are stored, and are unpacked on one more
// stream.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu/attention/attention.h"
#include "gpu/attention/row_blocks.h"
#include "gpu/runtime/handles.h"
#include "src/attention/block_attention.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv::gpu {

class LayerRows {
 public:
  /// Returns the device memory for the layer with most rows, of `tokens` tokens, in bytes.
  static std::int64_t bytes(const AttentionShape& shape, KvDType dtype, std::int64_t tokens);

  /// memory: bytes(...) bytes of device memory, which must outlive it.
  LayerRows(const AttentionShape& shape, KvDType dtype, std::int64_t tokens, std::byte* memory);

  /// Makes later copies wait for the event.
  void after(const Event& event) { event.block(copies_); }

  /// Waits for the copies begun. Returns true if all of them succeeded.
  bool wait() const {
    const bool copied = cudaStreamSynchronize(copies_) == cudaSuccess;
    return cudaStreamSynchronize(unpacks_) == cudaSuccess && copied;
  }

  /// Begins to copy the rows of the first `count` positions. rows: a span for each KV head, from
  /// position 0 on. Work that is given to `compute` afterwards finds them in the result, whose
  /// count it is. heads: of the rows' layer. stored: as for RowStream::stream. The rows of the host
  /// must stay valid until then.
  DeviceRows load(const LayerHeads& heads, std::span<const RowSpan> rows, std::int64_t count,
                  const StoredKeys& stored, cudaStream_t compute);

  /// Puts rows that are in device memory behind those that `rows` has.
  void add(const LayerHeads& heads, const DeviceRows& more, DeviceRows& rows,
           cudaStream_t compute) const;

  /// Lets the next load overwrite the rows of the last one, once `compute` has done what it was
  /// given. Call it once for each load.
  void release(cudaStream_t compute);

 private:
  static constexpr std::size_t slots = 3;

  /// Rows of all KV heads as they are stored: [kv_heads, keys then values].
  struct Slot {
    std::byte* data = nullptr;
    Event arrived;
    Event used;
  };

  /// Begins to copy rows in blocks, and to unpack them.
  void unpack(const LayerHeads& heads, std::span<const RowSpan> rows, const PositionRange& range,
              const StoredKeys& stored, const DeviceRows& loaded);

  KvDType dtype_;
  std::int64_t tokens_;
  __nv_bfloat16* rows_;  // [kv_heads, vectors, tokens, head_dim]
  Slot slots_[slots];    // of rows in blocks
  std::size_t next_ = 0;
  Event loaded_, used_;
  Stream copies_, unpacks_;
};

}  // namespace topkv::gpu
