// The rows of a context or a session in host memory, append-only: for every (layer, KV head) one
// array of keys and one of values, both [tokens, head_dim], each stored in its own dtype (types.h).
// Keys in q8 and q4 have scales of channels (core/row_format.h), chosen by the first tokens that a
// layer gets, if these are enough, or taken over from another store; they never change later. Such
// keys may have a bias besides, which is known before any of them come (core/key_bias.h).
//
// Keys lie together, apart from the values: exact search reads every key once, at the speed of
// memory. (With K and V of a row side by side the prefetchers fetched the values too: half the
// speed, measured.) A retrieved row costs two random reads instead of one, of few.
//
// A layer that attends the rows of another layer (AttentionShape::row_layer) has no arrays: its
// views are of the other layer's, with a number of tokens of its own. A layer with a recurrent
// state has nothing here (layer_states.h).
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

#include "src/core/memory/memory.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

class RowStore {
 public:
  /// owner: what the rows are for, in error messages ("context", "session").
  /// budget: bytes the rows of `capacity` tokens may take; 0: what the machine has available.
  /// Throws OutOfMemory, before anything is reserved, when they need more.
  RowStore(const AttentionShape& shape, KvDType dtype, std::int64_t capacity, std::int64_t budget,
           std::string owner);

  /// Rows that are there already and stay as they are: `tokens` of every layer that has rows, laid
  /// out as arrays are (below), each padded to a multiple of 4096 bytes. Whoever owns them is kept
  /// as long.
  RowStore(const AttentionShape& shape, KvDType dtype, std::int64_t tokens, const std::byte* arrays,
           std::shared_ptr<void> owner);

  /// Bytes of K and V of one token over all layers.
  static std::int64_t bytes_per_token(const AttentionShape& shape, KvDType dtype);

  /// Appends K and V of the next tokens of one layer, rounded to the store's dtypes.
  /// Throws InvalidArgument (the layer then stays as it was) when shapes differ, the number of
  /// tokens is negative, capacity is exceeded, tensors are q8 or q4, or a value is NaN, infinite or
  /// beyond the dtype's range.
  void append(std::int64_t layer, const TensorView& keys, const TensorView& values);

  /// Where rows of one (layer, KV head) lie: [capacity, head_dim] each. For a writer that puts rows
  /// there itself, already rounded and checked, and then calls extend.
  struct Arrays {
    std::byte* keys = nullptr;
    std::byte* values = nullptr;
  };
  Arrays arrays(std::int64_t layer, std::int64_t kv_head) const;
  /// Where the scales of a layer's channels lie, [kv_heads, head_dim], all 1 before the first
  /// tokens; for such a writer to choose before it puts any there. Null: keys have none.
  float* channels(std::int64_t layer) const;
  /// Those that were chosen by tokens which have been taken back are 1 again, where none came
  /// since.
  void forget_channels();
  /// The bias of keys, [layers, kv_heads, 3, head_dim] as KeyView::bias has it, empty for none, and
  /// the RoPE position of the first row. Keys in other dtypes have no use for it.
  /// REQUIRES: this empty, numbers finite.
  void set_bias(std::shared_ptr<const std::vector<float>> bias, std::int64_t first_position);
  /// Of a layer, [kv_heads, 3, head_dim]; null: none.
  const float* bias(std::int64_t layer) const;
  /// Takes the scales of channels and the bias over, for good, for rows from that RoPE position on.
  /// REQUIRES: same shape and dtype, this empty.
  void use_channels(const RowStore& other, std::int64_t first_position);
  /// Whether scales, bias and first position are the other's. REQUIRES: same shape and dtype.
  bool has_channels_of(const RowStore& other) const;
  /// The layer's next tokens have been put in its arrays, or, if it attends the rows of another
  /// layer, are among the rows of that layer. REQUIRES: room for them.
  void extend(std::int64_t layer, std::int64_t tokens);
  /// Forgets the layer's tokens from number `tokens` on.
  void shrink(std::int64_t layer, std::int64_t tokens);

  /// All arrays as one piece of memory, to be committed whole, and something to be kept as long as
  /// it (a page-lock).
  Region& whole_region();
  void keep(std::shared_ptr<void> kept) { kept_ = std::move(kept); }
  bool keeps() const { return kept_ != nullptr; }

  /// Copies the rows that `other` has in every layer, the scales and the bias. Scales that are
  /// there for good stay so. REQUIRES: same shape and dtype, this empty, capacity enough, scales
  /// that are there for good those of other.
  void copy_from(const RowStore& other);

  std::int64_t size(std::int64_t layer) const {
    return sizes_[static_cast<std::size_t>(layer)].load(std::memory_order_acquire);
  }
  std::int64_t capacity() const { return capacity_; }
  KvDType dtype() const { return dtype_; }
  /// The layer whose rows a layer attends: itself, or an earlier one.
  std::int64_t row_layer(std::int64_t layer) const { return place(layer).row_layer; }
  /// Whether a layer has rows of its own.
  bool has_rows(std::int64_t layer) const {
    return place(layer).arrays >= 0 && row_layer(layer) == layer;
  }
  /// Bytes of all rows that are there.
  std::int64_t bytes() const;
  /// The rows of one (layer, KV head); the address stays for the store's life.
  RowsView rows(std::int64_t layer, std::int64_t kv_head) const;

 private:
  enum class Half : std::int64_t { keys, values };
  /// Where the rows are that a layer attends.
  struct Place {
    std::int64_t row_layer = 0;
    std::int64_t arrays = -1;  // the number of the layer's arrays; -1: a recurrent state
  };
  static std::vector<Place> places(const AttentionShape& shape);
  const Place& place(std::int64_t layer) const { return places_[static_cast<std::size_t>(layer)]; }
  std::byte* array(std::int64_t layer, std::int64_t kv_head, Half half) const;
  KeyView view(std::int64_t layer, std::int64_t kv_head, Half half) const;
  /// Of a layer's first tokens.
  void choose_channels_by(std::int64_t layer, const TensorView& keys);
  void set_size(std::int64_t layer, std::int64_t tokens) {
    sizes_[static_cast<std::size_t>(layer)].store(tokens, std::memory_order_release);
  }
  /// Before rows of a layer up to number `tokens` are written.
  void choose_pages(std::int64_t tokens);

  std::vector<Place> places_;  // per layer
  std::int64_t kv_heads_;
  std::int64_t head_dim_;
  KvDType dtype_;
  std::int64_t capacity_;
  std::string owner_;
  std::int64_t half_bytes_[2];                      // of one K, one V
  std::int64_t array_bytes_[2];                     // of one array of each, padded to whole pages
  Region region_;                                   // none: somebody else's memory
  std::byte* arrays_ = nullptr;                     // [arrays, kv_heads, keys then values]
  std::vector<float> channels_;                     // [layers, kv_heads, head_dim], or none
  bool channels_chosen_ = false;                    // for good
  std::shared_ptr<const std::vector<float>> bias_;  // [layers, kv_heads, 3, head_dim]; null: none
  std::int64_t first_position_ = 0;                 // of the bias
  std::shared_ptr<void> lender_;                    // of arrays_, where region_ is none
  bool huge_pages_ = false;                         // what region_ commits by now
  std::shared_ptr<void> kept_;                      // goes before region_
  std::int64_t chunk_len_;
  std::vector<std::atomic<std::int64_t>> sizes_;  // per layer, tokens
};

}  // namespace topkv
