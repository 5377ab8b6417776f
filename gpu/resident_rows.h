// The rows of a session that stay in device memory: of each layer, those that a step attends in any
// case.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "gpu/attention.h"
#include "gpu/elementwise.h"
#include "gpu/session_layout.h"
#include "src/attention/block_attention.h"
#include "topkv/attention.h"
#include "topkv/types.h"

namespace topkv::gpu {

/// In the ring of a LayerWindow a row lies at its position modulo the ring's slots, so that new
/// rows take the places of those that no later token's window reaches. Does not own its memory.
/// What it gives to a stream is asynchronous.
class ResidentRows {
 public:
  /// memory: of the layout. All three outlive it.
  ResidentRows(const AttentionShape& shape, const SessionLayout& layout, std::byte* memory);

  bool dense(std::int64_t layer) const { return of(layer).dense; }
  /// Of a layer's keys as they are stored, on the device; null: they have none.
  float* channels(std::int64_t layer) const;
  /// Where the window of a step begins whose first token is at position `first`: attend() attends
  /// all rows from there on.
  std::int64_t window_begin(std::int64_t layer, std::int64_t first) const;

  /// Copies what is to stay of some of a layer's rows (one span per KV head); `end`: the position
  /// behind all that it has.
  void load(std::int64_t layer, std::span<const RowSpan> rows, std::int64_t end,
            cudaStream_t stream) const;

  /// Keeps new rows, [tokens, kv_heads, head_dim] in device memory, from position `first` on.
  void add(std::int64_t layer, const float* k, const float* v, std::int64_t tokens,
           std::int64_t first, cudaStream_t stream) const;

  /// Writes what the rows of the positions `sees` give to `partial`; the last `added` of all begin
  /// where queries do.
  void attend(std::int64_t layer, std::int64_t added, const AttentionQueries& queries,
              const PositionRange& sees, const DevicePartial& partial, cudaStream_t stream) const;

 private:
  const LayerWindow& of(std::int64_t layer) const {
    return layout_.layers[static_cast<std::size_t>(layer)];
  }
  template <class T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(memory_ + offset);
  }
  void put(std::int64_t layer, std::span<const RowSpan> rows, PositionRange range, bool ring,
           cudaStream_t stream) const;
  static void copy_as_bf16(const KeyView& from, std::byte* to, cudaStream_t stream);
  void pack(std::int64_t layer, const float* k, const float* v, std::int64_t tokens,
            const PackTarget& target, cudaStream_t stream) const;
  DeviceRows ring(const LayerWindow& window, std::int64_t first, std::int64_t count) const;

  const AttentionShape& shape_;
  const SessionLayout& layout_;
  std::byte* memory_;
};

}  // namespace topkv::gpu
