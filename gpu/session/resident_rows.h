// The rows that a step of a session always attends. They stay in device memory: the rows of the
// context, which its sessions share, and the rows of the session itself.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu/attention/attention.h"
#include "gpu/network/elementwise.h"
#include "gpu/session/context_window.h"
#include "gpu/session/session_layout.h"
#include "src/attention/block_attention.h"
#include "topkv/attention.h"
#include "topkv/types.h"

namespace topkv::gpu {

class CudaDevice;

/// Memory for own rows grows with the tokens, and doubles each time, up to LayerWindow::slots rows.
/// From then on row number i lies in slot i modulo slots. New rows thus replace rows that no later
/// token's window reaches. Work on a stream is asynchronous. Threads: one at a time.
class ResidentRows {
 public:
  /// memory: fixed_bytes(shape) bytes of device memory. The device and `memory` must outlive it.
  ResidentRows(CudaDevice& device, const SessionShape& shape,
               std::shared_ptr<const ContextWindow> context, std::byte* memory);

  /// The device memory that does not grow, in bytes: the sinks that the context does not have.
  static std::int64_t fixed_bytes(const SessionShape& shape);
  /// The most device memory of own rows, in bytes. It counts the old and the new memory while it
  /// grows.
  static std::int64_t most_bytes(const SessionShape& shape);

  bool dense(std::int64_t layer) const { return of(layer).dense; }
  /// The channels and the bias of a layer's stored keys, from RoPE position 0 on.
  StoredKeys stored_keys(std::int64_t layer) const { return context_->stored_keys(layer); }
  /// The first position of the window of a step whose first token is at position `first`. attend()
  /// attends all rows from there on.
  std::int64_t window_begin(std::int64_t layer, std::int64_t first) const;

  /// Whether all own rows of that window are still in memory. They are not if the layer attends the
  /// rows of another layer, which has been given many more tokens since.
  bool has_window(std::int64_t layer, std::int64_t first) const;

  /// Makes room for the session's own rows up to position `end`, in all layers. stream: the stream
  /// that uses the existing rows, which end at position `begin`. Throws OutOfMemory, and Error when
  /// a copy fails. Nothing has changed then.
  void reserve(std::int64_t begin, std::int64_t end, cudaStream_t stream);

  /// Copies the own rows of a layer that must stay. Does nothing for a layer without rows of its
  /// own. rows: one span for each KV head. REQUIRES: reserve() has made room for them.
  void load(std::int64_t layer, std::span<const RowSpan> rows, cudaStream_t stream);

  /// Adds new rows from position `first` on. k, v: [tokens, kv_heads, head_dim], float32, in device
  /// memory; if keys are values, v is not read. REQUIRES: reserve() has made room for them, and the
  /// layer has rows of its own.
  void add(std::int64_t layer, const float* k, const float* v, std::int64_t tokens,
           std::int64_t first, cudaStream_t stream);

  /// Writes the partial of the rows at the positions `sees`, or merges it. The last `added` rows
  /// begin at the first query's position.
  void attend(std::int64_t layer, std::int64_t added, const QueryView<__nv_bfloat16>& queries,
              const PositionRange& sees, const PartialView& partial, Into into,
              cudaStream_t stream) const;

 private:
  /// Own rows of a layer, [kv_heads, vectors, rows, head_dim]: keys, then values. Row i lies in
  /// slot i % slots. `rows` slots have memory.
  struct Block {
    __nv_bfloat16* keys;
    std::int64_t rows;
    std::int64_t slots;
  };

  const LayerWindow& of(std::int64_t layer) const {
    return layers_[static_cast<std::size_t>(layer)];
  }
  Block own_rows(std::int64_t layer) const;
  Block own_sinks(std::int64_t layer) const;
  void put(std::int64_t layer, std::span<const RowSpan> rows, PositionRange range, const Block& to,
           cudaStream_t stream) const;
  void pack(std::int64_t layer, const float* k, const float* v, std::int64_t tokens,
            std::int64_t first, const Block& to, cudaStream_t stream) const;
  DeviceRows rows_at(const LayerHeads& heads, PositionRange range, const __nv_bfloat16* of_context,
                     PositionRange context_rows, const Block& own) const;

  CudaDevice& device_;
  KvDType dtype_;           // of rows as they are stored
  std::int64_t own_first_;  // the position of the first own row
  std::vector<LayerWindow> layers_;
  std::shared_ptr<const ContextWindow> context_;
  std::byte* memory_;                   // the flag of nonfinite elements; own sinks
  std::vector<std::int64_t> sinks_at_;  // per layer, bytes
  std::int64_t most_slots_;             // slots of the largest layer
  std::int64_t capacity_ = 0;           // rows; at most the slots of each layer
  std::vector<std::int64_t> rows_at_;   // per layer, bytes in rows_
  std::vector<std::int64_t> ends_;      // per layer, the position after its last own row
  Buffer rows_;
};

}  // namespace topkv::gpu
