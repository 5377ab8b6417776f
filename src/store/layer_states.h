// What a segment keeps for each layer of a model: rows, or a recurrent state.
//
// - Attention: rows in the RowStore. Tokens grow by rows().append, or by a device's prefill. Of a
//   sliding window the last rows may be all that is kept (SlidingRows).
// - Attention over rows of an earlier layer: nothing, for views are of that layer's rows. Tokens
//   grow by rows().extend.
// - Recurrence: its state, and snapshots of earlier states. Tokens grow by advance.
//
// Contexts, sessions and their files treat all layers alike through this class: tokens, roll_back,
// copy_from, bytes, transfer_state. Rows can go back to any token, last rows to one whose window
// they hold, and a state to a token whose state it still has, so `reachable` is asked first.
//
// Threads: as RowStore; a recurrent state is for the thread that appends alone, until it is frozen.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "src/core/format/archive.h"
#include "src/store/row_store.h"
#include "src/store/state_memory.h"
#include "topkv/types.h"

namespace topkv {

/// The recurrent state of one layer, after its last token and after some earlier ones: each
/// snapshot, and the token before the last step, so that one step can always be taken back.
///
/// Copies share the memory of states. Threads: `tokens` may be called while another thread appends.
class RecurrentState {
 public:
  /// size: the number of values.
  explicit RecurrentState(std::int64_t size) : size_(size) {}
  RecurrentState(const RecurrentState& other);
  RecurrentState& operator=(const RecurrentState& other);

  std::int64_t size() const { return size_; }
  /// Returns the number of tokens that the state stands for.
  std::int64_t tokens() const { return tokens_.load(std::memory_order_relaxed); }
  /// Returns the state after the last token. Null: there was no token.
  std::shared_ptr<const StateMemory> memory() const {
    return points_.empty() ? nullptr : points_.back().memory;
  }
  /// Returns the same in host memory, to which it goes. Empty: there was no token.
  std::span<const float> values() const;

  /// Returns memory that no state needs any longer, if there is some.
  std::shared_ptr<StateMemory> take_spare() { return std::move(spare_); }
  /// The layer has read `tokens` more tokens, and this is its state now. REQUIRES: memory of this
  /// size, tokens >= 1.
  void advance(std::int64_t tokens, std::shared_ptr<StateMemory> memory);
  /// Keeps the present state, so that the layer can come back to it. All states go to host memory.
  /// Beyond most_snapshots, the one goes whose loss costs least: what lies between its neighbours,
  /// as a share of how far back that is.
  void snapshot();
  /// Returns the most tokens, at most `tokens`, whose state is there; 0 is always there.
  std::int64_t reachable(std::int64_t tokens) const;
  /// Goes back. REQUIRES: reachable(tokens) is tokens.
  void truncate(std::int64_t tokens);
  /// Forgets the token before the last step, and brings the last state to host memory.
  void forget_step();

  /// Returns the bytes of all states.
  std::int64_t bytes() const;
  /// Transfers the last state and the snapshots to or from a file, for a segment of `tokens`
  /// tokens. Read states are snapshots. REQUIRES for reading: there is no token.
  void fields(std::int64_t tokens, Archive& archive);

  static constexpr std::int64_t most_snapshots = 16;

 private:
  struct Point {
    std::int64_t tokens = 0;
    bool kept = false;  // a snapshot
    std::shared_ptr<StateMemory> memory = {};
  };

  /// Returns the values of a point, which then is in host memory.
  HostState& on_host(Point& point) const;
  void count_tokens() { tokens_ = points_.empty() ? 0 : points_.back().tokens; }

  std::int64_t size_;
  mutable std::vector<Point> points_;   // ascending tokens; mutable: values() moves one
  std::shared_ptr<StateMemory> spare_;  // of a point that is gone, and of no other text
  std::atomic<std::int64_t> tokens_ = 0;
};

/// Returns the values of one state of every layer of recurrence.
inline std::int64_t state_values(const AttentionShape& shape) {
  return std::accumulate(shape.state_size.begin(), shape.state_size.end(), std::int64_t{0});
}

class LayerStates {
 public:
  /// rows: the arguments of a RowStore after the shape.
  template <class... Rows>
  explicit LayerStates(const AttentionShape& shape, Rows&&... rows)
      : rows_(shape, std::forward<Rows>(rows)...) {
    for (std::int64_t layer = 0; layer < shape.layers; ++layer)
      states_.emplace_back(shape.state_size_of(layer));
  }

  RowStore& rows() { return rows_; }
  const RowStore& rows() const { return rows_; }
  /// Returns the recurrent state of a layer. For a layer of attention its size is 0.
  const RecurrentState& state(std::int64_t layer) const {
    return states_[static_cast<std::size_t>(layer)];
  }

  /// Throws InvalidArgument for a layer without a recurrent state.
  void check_recurrent(std::int64_t layer) const;
  /// Returns the number of tokens that a layer has.
  std::int64_t tokens(std::int64_t layer) const {
    return state(layer).size() > 0 ? state(layer).tokens() : rows_.size(layer);
  }
  /// Returns the present state of a layer of recurrence; empty before its first token. Throws
  /// InvalidArgument for another layer.
  std::span<const float> values(std::int64_t layer) const;
  /// Gives a layer of recurrence its next `tokens` tokens: the state after them. Throws
  /// InvalidArgument, and leaves the layer as it was, for a layer of attention, a state of another
  /// size, a value that is not finite, and tokens beyond the capacity.
  void advance(std::int64_t layer, std::int64_t tokens, std::span<const float> values);
  /// Likewise, with a state that is taken as it is: values that are not finite are found by what
  /// reads them. REQUIRES: memory of the layer's size.
  void advance(std::int64_t layer, std::int64_t tokens, std::shared_ptr<StateMemory> memory);
  std::shared_ptr<StateMemory> take_spare(std::int64_t layer) {
    return states_[static_cast<std::size_t>(layer)].take_spare();
  }
  /// Lets the layers that attend the rows of a layer have all tokens of that layer.
  void follow(std::int64_t row_layer);
  /// Makes snapshots of all recurrent states.
  void snapshot();
  /// Returns the most tokens, at most `tokens`, that every layer can go back to.
  std::int64_t reachable(std::int64_t tokens) const;
  /// Throws InvalidArgument, with the tokens that can be gone back to, unless `tokens` can be.
  void check_reachable(std::int64_t tokens) const;
  /// Forgets a layer's tokens from number `tokens` on. REQUIRES: it can go back to them.
  void roll_back(std::int64_t layer, std::int64_t tokens);
  /// Copies all layers of `other`. REQUIRES: what RowStore::copy_from requires.
  void copy_from(const LayerStates& other);
  /// There will be no more tokens.
  void freeze();

  /// Returns the bytes of all recurrent states.
  std::int64_t state_bytes() const;
  /// Transfers the recurrent state of a layer to or from a file (RecurrentState::fields).
  void transfer_state(std::int64_t layer, std::int64_t tokens, Archive& archive) {
    states_[static_cast<std::size_t>(layer)].fields(tokens, archive);
  }

 private:
  /// Throws InvalidArgument for tokens beyond the capacity.
  void check_room(std::int64_t layer, std::int64_t tokens) const;

  RowStore rows_;
  std::vector<RecurrentState> states_;  // per layer
};

}  // namespace topkv
