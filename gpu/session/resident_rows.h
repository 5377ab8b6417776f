// The rows that a session's step attends in any case, which stay in device memory: the context's,
// which its sessions have together, and the session's own.
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

/// Memory for own rows is taken as tokens come, twice as much each time, until there is room for
/// LayerWindow::slots rows. From then on a row lies at its number modulo these, so that new rows
/// take the places of those that no later token's window reaches.
/// What it gives to a stream is asynchronous. Threads: one at a time.
class ResidentRows {
 public:
  /// The device outlives it; so does `memory`, fixed_bytes(shape) of its memory.
  ResidentRows(CudaDevice& device, const SessionShape& shape,
               std::shared_ptr<const ContextWindow> context, std::byte* memory);

  /// Device memory of what does not grow: the sinks that the context lacks.
  static std::int64_t fixed_bytes(const SessionShape& shape);
  /// Of own rows: the most there is while more is taken.
  static std::int64_t most_bytes(const SessionShape& shape);

  bool dense(std::int64_t layer) const { return of(layer).dense; }
  /// What a layer's keys are stored with, from RoPE position 0 on.
  StoredKeys stored_keys(std::int64_t layer) const { return context_->stored_keys(layer); }
  /// Where the window of a step begins whose first token is at position `first`: attend() attends
  /// all rows from there on.
  std::int64_t window_begin(std::int64_t layer, std::int64_t first) const;

  /// Room for the session's own rows up to position `end`, of all layers; `stream`: where those are
  /// used that are there, up to position `begin`. Throws OutOfMemory, and Error where copying
  /// fails: all is as it was.
  void reserve(std::int64_t begin, std::int64_t end, cudaStream_t stream);

  /// Copies what is to stay of a layer's own rows (one span per KV head). REQUIRES: room for them.
  void load(std::int64_t layer, std::span<const RowSpan> rows, cudaStream_t stream) const;

  /// Keeps new rows, [tokens, kv_heads, head_dim] in device memory, from position `first` on.
  /// REQUIRES: room for them.
  void add(std::int64_t layer, const float* k, const float* v, std::int64_t tokens,
           std::int64_t first, cudaStream_t stream) const;

  /// Writes what the rows of the positions `sees` give to `partial`; the last `added` of all begin
  /// where queries do.
  void attend(std::int64_t layer, std::int64_t added, const AttentionQueries& queries,
              const PositionRange& sees, const DevicePartial& partial, cudaStream_t stream) const;

 private:
  /// Own ones of a layer, [kv_heads, 2, rows, head_dim]: keys, then values. Row i lies in slot
  /// i % slots, of which there is room for `rows`.
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
  void put(std::span<const RowSpan> rows, PositionRange range, const Block& to,
           cudaStream_t stream) const;
  void pack(std::int64_t layer, const float* k, const float* v, std::int64_t tokens,
            std::int64_t first, const Block& to, cudaStream_t stream) const;
  DeviceRows rows_at(PositionRange range, const __nv_bfloat16* of_context,
                     PositionRange context_rows, const Block& own) const;

  CudaDevice& device_;
  AttentionShape shape_;
  KvDType dtype_;           // of rows as they are stored
  std::int64_t own_first_;  // the position of the first own row
  std::vector<LayerWindow> layers_;
  std::shared_ptr<const ContextWindow> context_;
  std::byte* memory_;                   // what kernels name in it that is not finite; own sinks
  std::vector<std::int64_t> sinks_at_;  // per layer, bytes
  std::int64_t most_slots_;             // of a layer
  std::int64_t capacity_ = 0;           // rows; of a layer with fewer slots, as many as it has
  std::vector<std::int64_t> rows_at_;   // per layer, bytes; of:
  Buffer rows_;
};

}  // namespace topkv::gpu
