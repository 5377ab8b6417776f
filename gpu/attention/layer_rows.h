// All rows of one layer in device memory as bf16, for attention that meets them in any order. They
// are copied from host memory on a stream of their own, while the compute stream works on the layer
// before.
//
// Rows in blocks (q8, q4) arrive in one buffer as they are stored, and are unpacked into another.
// Rows in bf16 arrive in two buffers in turn.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu/attention/attention.h"
#include "gpu/attention/row_blocks.h"
#include "gpu/runtime/handles.h"
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
  bool wait() const { return cudaStreamSynchronize(copies_) == cudaSuccess; }

  /// Begins to copy the first `count` rows of the views, one for each KV head. Work that is given
  /// to `compute` afterwards finds them in the result, whose count it is. heads: of the rows'
  /// layer. stored: as for RowStream::stream. The rows of the host must stay valid until then.
  DeviceRows load(const LayerHeads& heads, std::span<const RowsView> rows, std::int64_t count,
                  const StoredKeys& stored, cudaStream_t compute);

  /// Puts rows that are in device memory behind those that `rows` has.
  void add(const LayerHeads& heads, const DeviceRows& more, DeviceRows& rows,
           cudaStream_t compute) const;

  /// Lets the next load overwrite the rows of the last one, once `compute` has done what it was
  /// given. Call it once for each load.
  void release(cudaStream_t compute);

 private:
  struct Slot {
    std::byte* data = nullptr;
    Event arrived;
    Event used;
  };

  KvDType dtype_;
  std::int64_t tokens_;
  __nv_bfloat16* unpacked_;  // null: rows come in bf16
  Slot slots_[2];            // rows in blocks have one
  std::size_t slot_ = 0;
  Stream copies_;
};

}  // namespace topkv::gpu
