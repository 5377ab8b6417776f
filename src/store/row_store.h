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
// When keys are values (AttentionShape::keys_are_values) there are no arrays of values: the view of
// values is that of keys. Such keys have neither scales of channels nor a bias, because sums of
// values know neither.
//
// A layer that attends the rows of another layer (AttentionShape::row_layer) has no arrays: its
// views are of the other layer's, with a number of tokens of its own. A layer with a recurrent
// state has nothing here (layer_states.h).
//
// A layer with a trained indexer has index keys beside its rows (index_keys.h), which are written
// before the rows of their tokens.
//
// A layer with a sliding window may keep its last rows only (SlidingRows). Positions count all
// tokens all the same: the first row that is there has the position first_row(layer), and views
// begin at position 0, whose row must not be read then.
//
// Address space for `capacity` tokens is reserved up front, so rows never move: indices read keys
// in place. (Last rows of a sliding layer move, between steps.) Memory is committed as rows arrive:
// in small pages while an array is shorter than a huge page (a session of a few tokens would
// otherwise commit one for each of its arrays), in huge pages from then on, where the system grants
// them. Threads: one thread appends; rows below size(layer) may be read by any thread meanwhile,
// unless layers keep their last rows only.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/core/memory/memory.h"
#include "src/store/index_keys.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

/// Which rows a store keeps of layers that have a sliding window.
enum class SlidingRows {
  all,
  /// The last ones. Of a window of w tokens it keeps 2 w rows at least, so that w tokens can be
  /// taken back; freeze() leaves w.
  last,
};

class RowStore {
 public:
  /// owner: what the rows are for, in error messages ("context", "session").
  /// budget: bytes the rows of `capacity` tokens may take; 0: what the machine has available.
  /// Throws OutOfMemory, before anything is reserved, when they need more.
  RowStore(const AttentionShape& shape, KvDType dtype, std::int64_t capacity, std::int64_t budget,
           std::string owner, SlidingRows sliding = SlidingRows::all);

  /// Room for the rows of a file of `tokens` tokens. first_rows: for each layer the position of its
  /// first row; empty: 0. Budget, owner and errors as above.
  RowStore(const AttentionShape& shape, KvDType dtype, std::int64_t tokens,
           const std::vector<std::int64_t>& first_rows, std::int64_t budget, std::string owner);

  /// Rows that are there already and stay as they are: `tokens` of every layer that has rows, from
  /// its first row on, laid out as arrays are (below), each padded to a multiple of 4096 bytes.
  /// Whoever owns them is kept as long. Index keys are there after IndexKeys::borrow.
  RowStore(const AttentionShape& shape, KvDType dtype, std::int64_t tokens,
           const std::vector<std::int64_t>& first_rows, const std::byte* arrays,
           std::shared_ptr<void> owner);

  /// Whether keys of this shape and dtype have scales of channels.
  static bool has_channels(const AttentionShape& shape, KvDType dtype) {
    return in_blocks(dtype.keys) && !shape.keys_are_values;
  }

  /// Bytes of K and V of one token, and of its share of index keys, over all layers. Throws
  /// InvalidArgument when 64 bits do not count them.
  static std::int64_t bytes_per_token(const AttentionShape& shape, KvDType dtype);

  /// Bytes of all rows while `tokens` tokens are read in steps of `step` tokens, and sliding layers
  /// keep their last rows. REQUIRES: 64 bits count them.
  static std::int64_t bytes_while_read(const AttentionShape& shape, KvDType dtype,
                                       std::int64_t tokens, std::int64_t step);

  /// Throws InvalidArgument unless there is room for that many more tokens of a layer.
  void check_room(std::int64_t layer, std::int64_t tokens) const;

  /// Appends K and V of the next tokens of one layer, rounded to the store's dtypes.
  /// values: null when keys are values.
  /// Throws InvalidArgument (the layer then stays as it was) when shapes differ, values are given
  /// that are keys, the number of tokens is negative, capacity is exceeded, tensors are q8 or q4,
  /// or a value is NaN, infinite or beyond the dtype's range.
  void append(std::int64_t layer, const TensorView& keys, const TensorView& values);

  /// Where the rows of one (layer, KV head) lie, from a position on: [rows, head_dim] each. For a
  /// writer that puts rows there itself, already rounded and checked, and then calls extend.
  struct Arrays {
    std::byte* keys = nullptr;
    std::byte* values = nullptr;
  };
  Arrays arrays(std::int64_t layer, std::int64_t kv_head, std::int64_t position) const;

  /// Gives layers that keep their last rows memory for steps of `tokens` tokens, two of which may
  /// be under way. No writer may be at work. Throws OutOfMemory, and leaves all as it was.
  void make_room_for_steps(std::int64_t tokens);
  /// Whether every layer has memory for the rows of positions below `end`. (A layer that keeps its
  /// last rows has it again after slide.)
  bool has_memory_to(std::int64_t end) const;
  /// Moves last rows to the front of their memory, and forgets those before. No reader or writer
  /// may be at work. REQUIRES for the steps to come: make_room_for_steps.
  void slide();
  /// The position of the first row of a layer that is there.
  std::int64_t first_row(std::int64_t layer) const { return arrays_of(layer).first; }
  /// Whether a layer can go back to `tokens` tokens: it has the rows that the next token attends.
  bool can_go_back(std::int64_t layer, std::int64_t tokens) const;
  /// Where the scales of a layer's channels lie, [kv_heads, head_dim], then 1 up to the channels of
  /// the widest layer; all 1 before the first
  /// tokens; for such a writer to choose before it puts any there. Null: keys have none.
  float* channels(std::int64_t layer) const;
  /// Whether the first tokens of a layer choose them.
  bool chooses_channels() const { return !channels_.empty() && !channels_chosen_; }
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
  /// Forgets the layer's tokens from number `tokens` on. REQUIRES: can_go_back.
  void shrink(std::int64_t layer, std::int64_t tokens);
  /// There will be no more rows. Last rows that no later token attends are forgotten, and their
  /// memory is given back. Throws OutOfMemory, and leaves all as it was.
  void freeze();

  /// Before rows of a layer up to number `tokens` are written: chooses the pages that they are in.
  void choose_pages(std::int64_t tokens);
  /// All rows are to be written at once: memory comes in huge pages from the first on.
  void use_huge_pages() { choose_pages(capacity_); }
  /// Locks the memory of all arrays, if there is any that is not locked: `lock` is given its
  /// address and bytes, and what it returns is kept as long as the memory.
  void lock_pages(const std::function<std::shared_ptr<void>(std::byte*, std::int64_t)>& lock);
  /// Whether the memory of layers that keep all rows is locked.
  bool is_locked() const { return locks_[0] != nullptr; }

  /// Copies the rows and index keys that `other` has in every layer, the scales and the bias.
  /// Scales that are there for good stay so. REQUIRES: same shape and dtype, this empty, capacity
  /// enough, scales that are there for good those of other, index keys that begin at one position.
  void copy_from(const RowStore& other);

  std::int64_t size(std::int64_t layer) const {
    return sizes_[static_cast<std::size_t>(layer)].load(std::memory_order_acquire);
  }
  std::int64_t capacity() const { return capacity_; }
  KvDType dtype() const { return dtype_; }
  /// The layer whose rows a layer attends: itself, or an earlier one.
  std::int64_t row_layer(std::int64_t layer) const {
    return row_layers_[static_cast<std::size_t>(layer)];
  }
  /// Whether a layer has rows of its own.
  bool has_rows(std::int64_t layer) const {
    return arrays_[static_cast<std::size_t>(layer)].window >= 0;
  }
  /// Bytes of all rows and index keys that are there.
  std::int64_t bytes() const;
  /// The index keys of layers that have them. A layer has those of its size(layer) tokens.
  IndexKeys& index_keys() { return index_keys_; }
  const IndexKeys& index_keys() const { return index_keys_; }
  /// The index keys of a layer, those of its tokens alone; empty for a layer without index keys.
  KeyView index_keys(std::int64_t layer) const { return index_keys_.keys(layer, size(layer)); }
  /// The rows of one (layer, KV head); the address stays for the store's life.
  RowsView rows(std::int64_t layer, std::int64_t kv_head) const;

 private:
  enum class Half : std::int64_t { keys, values };
  /// The arrays of a layer, [kv_heads, keys then values, rows]. Row 0 of each has position first.
  struct LayerArrays {
    std::int64_t window = -1;  // the sliding window; 0: none; -1: the layer has no rows of its own
    std::int64_t kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t half_bytes[2] = {0, 0};  // of one K, one V
    std::int64_t rows = 0;                // that an array has memory for
    std::int64_t first = 0;
    std::int64_t bytes[2] = {0, 0};  // of an array of K, of V, padded to whole pages
    std::byte* data = nullptr;

    /// Bytes of K and V of one token.
    std::int64_t row_bytes() const { return kv_heads * (half_bytes[0] + half_bytes[1]); }
  };

  /// Of no memory yet.
  RowStore(const AttentionShape& shape, KvDType dtype, std::int64_t capacity, std::string owner,
           SlidingRows sliding);
  /// As many rows as there are tokens from the first row on, or as are kept.
  void count_rows(const std::vector<std::int64_t>& first_rows);
  void set_rows(LayerArrays& arrays, std::int64_t rows, std::int64_t largest_page) const;
  void reserve_memory(std::int64_t budget);
  /// The arrays of a region: of layers that keep their last rows, or of all others.
  bool is_in(std::size_t region, std::int64_t layer) const {
    return has_rows(layer) && keeps_last(layer) == (region == 1);
  }
  /// Lays out the arrays of a region from an address on, and returns their bytes.
  std::int64_t lay_out(std::vector<LayerArrays>& arrays, std::size_t region, std::byte* data) const;
  bool keeps_last(std::int64_t layer) const {
    return sliding_ == SlidingRows::last && arrays_[static_cast<std::size_t>(layer)].window > 0;
  }
  const LayerArrays& arrays_of(std::int64_t layer) const {
    return arrays_[static_cast<std::size_t>(row_layer(layer))];
  }
  std::byte* row(const LayerArrays& arrays, std::int64_t kv_head, Half half,
                 std::int64_t position) const;
  KeyView view(std::int64_t layer, std::int64_t kv_head, Half half) const;
  /// Copies rows of a layer, of these positions, between arrays that do not overlap.
  void copy_rows(const LayerArrays& from, const LayerArrays& to, PositionRange range) const;
  /// Makes new memory for layers that keep their last rows. moved: their arrays, with the rows and
  /// the first row that they are to have. When it throws, all is as it was.
  void move_last(std::vector<LayerArrays> moved);
  /// Throws OutOfMemory when the budget, or the memory that is free, cannot hold these arrays.
  /// otherwise: what a caller can do besides making room.
  void check_memory(const std::vector<LayerArrays>& arrays, std::string_view otherwise) const;
  bool has_memory_to(std::int64_t layer, std::int64_t end) const;
  /// The rows that slide(layer) keeps.
  std::int64_t rows_to_slide(std::int64_t layer) const;
  void slide(std::int64_t layer);
  /// append() of more tokens than there is memory for after slide(layer): the rows of the last ones
  /// replace all others. The others stay where they are until the new rows are there.
  void append_last(std::int64_t layer, const TensorView& keys, const TensorView& values);
  /// Of a layer's first tokens.
  void choose_channels_by(std::int64_t layer, const TensorView& keys);
  /// Rounds tokens `range` of K and V, and throws InvalidArgument for a value that cannot be
  /// stored. kept: to the rows of positions from start on, where token 0 belongs; else for the
  /// error alone.
  void round_rows(std::int64_t layer, const TensorView& keys, const TensorView& values,
                  std::int64_t start, PositionRange range, bool kept);
  void set_size(std::int64_t layer, std::int64_t tokens) {
    sizes_[static_cast<std::size_t>(layer)].store(tokens, std::memory_order_release);
  }

  std::vector<std::int64_t> row_layers_;  // per layer
  std::vector<LayerArrays> arrays_;       // per layer
  KvDType dtype_;
  std::int64_t capacity_;
  std::int64_t budget_ = 0;
  std::string owner_;
  SlidingRows sliding_;
  Region regions_[2];                // the second: of layers that keep last rows
  std::int64_t channels_per_layer_;  // of the widest layer
  bool keys_are_values_;
  std::vector<float> channels_;                     // [layers, channels_per_layer], or none
  bool channels_chosen_ = false;                    // for good
  std::shared_ptr<const std::vector<float>> bias_;  // [layers, 3, channels_per_layer]; null: none
  std::int64_t first_position_ = 0;                 // of the bias
  IndexKeys index_keys_;
  std::shared_ptr<void> lender_;    // of the arrays, where there are no regions
  bool huge_pages_ = false;         // what regions_[0] commits by now
  std::shared_ptr<void> locks_[2];  // go before the regions
  std::int64_t chunk_len_;
  std::vector<std::atomic<std::int64_t>> sizes_;  // per layer, tokens
};

}  // namespace topkv
