// Turns: steps of many tokens, which a session reads as a prefill reads text
// (RetrievalOptions::turns).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/device/device_prefill.h"
#include "src/session/session_core.h"

namespace topkv {

/// Reads the turns of a session by a DevicePrefill into the session's own rows, behind the rows of
/// its context.
///
/// The prefill, with the mean keys and the device memory that it has, lives from the first step of
/// a turn to the first other call that changes the session, to a step of another mode, or to a step
/// that fails. It is never asked for rows that were taken back or came by another way.
class TurnReader {
 public:
  /// Throws InvalidArgument for options of turns that no session takes, and Unsupported.
  explicit TurnReader(SessionCore& session);

  /// Returns whether a step of this session, which is checked, is read here: K and V of
  /// least_turn_tokens tokens or more, of a layer whose turn it is.
  bool takes(const AttentionStep& step) const;
  /// Returns whether a turn is being read.
  bool reading() const { return next_layer_ >= 0; }
  /// Reads a step. When it throws, the layer is as it was. REQUIRES: takes(step); the step is of
  /// this session alone.
  void read(const AttentionStep& step);
  /// After a step that failed, and whose rows are taken back: the layer may get it again.
  void take_back(const AttentionStep& step);
  /// Ends the turn: the session changes in another way. Keeps its shares.
  void end();

  /// Returns what the tokens of turns attended: [layers].
  std::vector<PrefillShare> shares() const;
  /// Goes on with the shares of the session that this one was forked from.
  void start_with(std::vector<PrefillShare> shares) { ended_ = std::move(shares); }

 private:
  /// The last step that was read here.
  struct Last {
    std::int64_t layer = -1;
    std::int64_t first = 0;   // position of its first token
    PrefillShare share = {};  // of the layer, before the step
  };

  void begin(const AttentionStep& step, const PrefillAttention& attention);
  /// Gives the prefill back. Keeps its shares.
  void drop();
  PrefillShare share(std::int64_t layer) const;
  /// The layer of attention after this one; the first after the last.
  std::int64_t layer_after(std::int64_t layer) const;

  SessionCore& session_;
  std::unique_ptr<DevicePrefill> prefill_;  // null: a step makes one
  Prefill mode_ = Prefill::automatic;       // of the prefill that was made last
  Last last_;
  std::int64_t next_layer_ = -1;     // whose step comes next; -1: no turn is being read
  std::int64_t tokens_ = 0;          // of that step, unless the layer is the first
  std::vector<PrefillShare> ended_;  // per layer, of turns that have ended
};

}  // namespace topkv
