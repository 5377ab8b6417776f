// Turns: steps of many tokens, which a session reads as a prefill reads text
// (RetrievalOptions::turns).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/device/device_prefill.h"
#include "src/session/session_core.h"

namespace topkv {

/// The tokens of a step that a prefill of turns has room for at least.
inline constexpr std::int64_t turn_chunk = 640;

/// Reads the turns of a session by a DevicePrefill into the session's own rows, behind the rows of
/// its context.
///
/// The prefill, with the mean keys and the device memory that it has, lives from the first step of
/// a turn to the first other call that changes the session, to a step of another mode or beyond its
/// room, or to a step that fails. It is never asked for rows that were taken back or came by
/// another way. The device's window gets the rows, too, so that the steps after a turn find them.
class TurnReader {
 public:
  /// Throws InvalidArgument for options of turns that no session takes, and Unsupported.
  explicit TurnReader(SessionCore& session);
  ~TurnReader() { drop(); }
  TurnReader(const TurnReader&) = delete;  // a prefill points to the rows of one session
  TurnReader& operator=(const TurnReader&) = delete;

  /// Returns whether a step of this session, which is checked, is read here: K and V of
  /// least_turn_tokens tokens or more, of a layer whose turn it is. In an automatic mode a device
  /// has room for a dense prefill at least.
  bool takes(const AttentionStep& step) const;
  /// Returns whether a turn is being read.
  bool reading() const { return next_layer_ >= 0; }
  /// Reads a step. When it throws, some of its rows may have come: take_back follows. Throws
  /// OutOfMemory when the device has no room for a prefill. REQUIRES: takes(step); the step is of
  /// this session alone.
  void read(const AttentionStep& step);
  /// After a step that failed, and whose rows are taken back: the layer may get it again.
  void take_back(const AttentionStep& step);
  /// Ends the turn: the session changes in another way. Keeps its shares.
  void end();

  /// Returns what the tokens of turns attended: [layers].
  const std::vector<PrefillShare>& shares() const { return shares_; }
  /// Goes on with the shares of the session that this one was forked from.
  void start_with(std::vector<PrefillShare> shares) { shares_ = std::move(shares); }

 private:
  /// The last step that was read here.
  struct Last {
    std::int64_t layer = -1;
    std::int64_t first = 0;   // position of its first token
    PrefillShare share = {};  // of the layer, before the step
  };

  /// Returns whether the device has room for what an automatic mode takes at least.
  bool has_room() const;
  /// Sees to it that there is a prefill for a step of the positions from `first` to before `end`.
  /// The caller holds the device's lock.
  void open(std::int64_t first, std::int64_t end);
  /// Gives the prefill back.
  void drop() noexcept;
  /// The layer of attention after this one; the first after the last.
  std::int64_t layer_after(std::int64_t layer) const;

  SessionCore& session_;
  std::unique_ptr<DevicePrefill> prefill_;  // null: a step makes one
  // Of the prefill that was made last.
  Prefill wanted_ = Prefill::automatic;  // its mode, if a device's memory has no say
  bool counts_dense_ = false;            // its tokens, as they would choose in a longer text
  std::int64_t chunk_ = 0;               // the most tokens of a step
  std::int64_t room_ = 0;                // the position that it has room up to
  std::vector<PrefillShare> before_;     // per layer, of the turns before it
  Last last_;
  std::int64_t next_layer_ = -1;      // whose step comes next; -1: no turn is being read
  std::int64_t tokens_ = 0;           // of that step, unless the layer is the first
  std::vector<PrefillShare> shares_;  // per layer
};

}  // namespace topkv
