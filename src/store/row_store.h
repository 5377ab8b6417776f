// The rows of a context or a session in host memory, append-only: for every (layer, KV head) one
// array of keys and one of values, both [tokens, head_dim].
//
// Keys lie together, apart from the values: exact search reads every key once, at the speed of
// memory. (With K and V of a row side by side the prefetchers fetched the values too: half the
// speed, measured.) A retrieved row costs two random reads instead of one, of few.
//
// Address space for `capacity` tokens is reserved up front, so rows never move: indices read keys
// in place. Memory is committed as rows arrive: in small pages while an array is shorter than a
// huge page (a session of a few tokens would otherwise commit one for each of its arrays), in huge
// pages from then on, where the system grants them. Threads: one thread appends; rows below
// size(layer) may be read by any thread meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/core/memory.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

class RowStore {
 public:
  /// owner: what the rows are for, in error messages ("context", "session").
  /// budget: bytes the rows of `capacity` tokens may take; 0: what the machine has available.
  /// Throws OutOfMemory, before anything is reserved, when they need more.
  RowStore(const AttentionShape& shape, DType dtype, std::int64_t capacity, std::int64_t budget,
           std::string owner);

  /// Bytes of K and V of one token over all layers.
  static std::int64_t bytes_per_token(const AttentionShape& shape, DType dtype);

  /// Appends K and V of the next tokens of one layer, rounded to the store's dtype.
  /// Throws InvalidArgument (the layer then stays as it was) when shapes differ, the number of
  /// tokens is negative, capacity is exceeded, or a value is NaN, infinite or beyond the dtype's
  /// range.
  void append(std::int64_t layer, const TensorView& keys, const TensorView& values);

  /// Where rows of one (layer, KV head) lie: [capacity, head_dim] each. For a writer that puts rows
  /// there itself, already rounded and checked, and then calls extend.
  struct Arrays {
    std::byte* keys = nullptr;
    std::byte* values = nullptr;
  };
  Arrays arrays(std::int64_t layer, std::int64_t kv_head) const;
  /// The layer's next tokens have been put in its arrays. REQUIRES: room for them.
  void extend(std::int64_t layer, std::int64_t tokens);
  /// Forgets the layer's tokens from number `tokens` on.
  void shrink(std::int64_t layer, std::int64_t tokens);

  /// All arrays as one piece of memory, to be committed whole, and something to be kept as long as
  /// it (a page-lock).
  Region& whole_region();
  void keep(std::shared_ptr<void> kept) { kept_ = std::move(kept); }
  bool keeps() const { return kept_ != nullptr; }

  /// Copies the rows that `other` has in every layer. REQUIRES: same shape and dtype, this empty,
  /// capacity enough.
  void copy_from(const RowStore& other);

  std::int64_t size(std::int64_t layer) const {
    return sizes_[static_cast<std::size_t>(layer)].load(std::memory_order_acquire);
  }
  std::int64_t capacity() const { return capacity_; }
  DType dtype() const { return dtype_; }
  /// Bytes of all rows that are there.
  std::int64_t bytes() const;
  /// The rows of one (layer, KV head); the address stays for the store's life.
  RowsView rows(std::int64_t layer, std::int64_t kv_head) const;

 private:
  enum class Half : std::int64_t { keys, values };
  std::byte* array(std::int64_t layer, std::int64_t kv_head, Half half) const;
  void set_size(std::int64_t layer, std::int64_t tokens) {
    sizes_[static_cast<std::size_t>(layer)].store(tokens, std::memory_order_release);
  }
  /// Before rows of a layer up to number `tokens` are written.
  void choose_pages(std::int64_t tokens);

  std::int64_t kv_heads_;
  std::int64_t head_dim_;
  DType dtype_;
  std::int64_t capacity_;
  std::string owner_;
  std::int64_t half_bytes_;                       // of one K or V
  std::int64_t array_bytes_;                      // of one array, padded to whole pages
  Region region_;                                 // [layers, kv_heads, 2, array_bytes]
  bool huge_pages_ = false;                       // what region_ commits by now
  std::shared_ptr<void> kept_;                    // goes before region_
  std::vector<std::atomic<std::int64_t>> sizes_;  // per layer, tokens
};

}  // namespace topkv
