// The index keys of layers with a trained indexer (IndexerShape), beside the rows of a RowStore.
//
// One key stands for a group of tokens, and groups are counted from the begin of the text. The
// number of a layer's keys therefore follows from the number of its tokens and from the position of
// the first of them: a store has no count of its own, and needs no change when tokens are taken
// back. A key of a group that began before the store's first token belongs to this store if its
// last token does.
//
// Memory: address space for the keys of `capacity` tokens is reserved, so keys never move. It comes
// in small pages while a layer has few keys, as rows do (row_store.h). Keys may also lie in memory
// of somebody else, such as a mapped file. Threads: one thread writes keys; keys of tokens that are
// there may be read by any thread meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/core/memory/memory.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

class IndexKeys {
 public:
  /// No layer has keys.
  IndexKeys() = default;
  /// Room for the keys of `capacity` tokens, without memory yet: reserve() or borrow() follows.
  /// Throws InvalidArgument when 64 bits do not count the bytes, and Unsupported for more keys than
  /// `most_keys`.
  IndexKeys(const AttentionShape& shape, std::int64_t capacity);

  /// The most keys of a text: choices have their numbers in 32 bits.
  static constexpr std::int64_t most_keys = std::int64_t{1} << 31;

  /// Returns the bytes of all keys that there is room for.
  std::int64_t capacity_bytes() const;
  /// Gets the memory. Throws OutOfMemory when the address space is refused.
  void reserve();
  /// Takes keys that are there already and stay as they are: the keys of `tokens` tokens, of each
  /// layer that has keys, padded to a multiple of small_page. Whoever owns them is kept as long.
  void borrow(const std::byte* arrays, std::int64_t tokens, std::shared_ptr<void> owner);
  /// Sets the position of the first token in the text: 0 before. REQUIRES: there is no token yet.
  void begin_at(std::int64_t position) { first_ = position; }
  /// Returns the position of the first token in the text.
  std::int64_t first_position() const { return first_; }

  /// Returns whether a layer has keys.
  bool has(std::int64_t layer) const {
    return !places_.empty() && places_[static_cast<std::size_t>(layer)] >= 0;
  }
  /// Returns the number of keys of a layer that has keys and `tokens` tokens.
  std::int64_t count(std::int64_t tokens) const { return indexer_.completed(first_, tokens); }
  /// Writes the keys that a layer's next `more` tokens complete, rounded to the store's dtype. They
  /// count once the layer has the tokens. keys: [count(tokens + more) - count(tokens), dim].
  /// Throws InvalidArgument for a value that is not finite, or not in the dtype; keys that were
  /// there stay as they were. REQUIRES: the layer has keys, and there is room.
  void write(std::int64_t layer, std::int64_t tokens, std::int64_t more, const float* keys);
  /// Where the keys of a layer lie, for a reader of a file to put them there. REQUIRES: the layer
  /// has keys.
  std::byte* data(std::int64_t layer) const {
    return data_ + places_[static_cast<std::size_t>(layer)] * layer_bytes_;
  }
  /// Returns the keys of a layer that has `tokens` tokens. Key 0 of the view has the number
  /// keys(first position) in the text. Empty for a layer without keys.
  KeyView keys(std::int64_t layer, std::int64_t tokens) const;
  /// Returns the bytes of the keys of a layer that has `tokens` tokens; 0 for a layer without keys.
  std::int64_t bytes(std::int64_t layer, std::int64_t tokens) const {
    return has(layer) ? count(tokens) * indexer_.key_bytes() : 0;
  }
  /// Copies the keys of a layer that has `tokens` tokens in `other`, if it has keys. REQUIRES: same
  /// shape and first position, room for the keys.
  void copy_from(const IndexKeys& other, std::int64_t layer, std::int64_t tokens);

 private:
  IndexerShape indexer_ = {};
  std::vector<std::int64_t> places_;  // per layer: number of its array, -1: it has no keys
  std::int64_t arrays_ = 0;
  std::int64_t layer_bytes_ = 0;  // of an array, padded to whole pages
  std::int64_t room_ = 0;         // keys that an array has room for
  std::int64_t first_ = 0;
  std::byte* data_ = nullptr;
  bool huge_pages_ = false;
  Region region_;
  std::shared_ptr<void> lender_;  // of the arrays, where there is no region
};

}  // namespace topkv
