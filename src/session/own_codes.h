// Codes of a session's own rows, where the context's rows have codes.
//
// Codes are learned on the own rows themselves: a context's axes would serve for text that is like
// the context only. All codes are made anew when there are some more rows, so many that attending
// these rows meanwhile takes about as long as making codes.
#pragma once

#include <cstdint>

#include "src/session/session_core.h"

namespace topkv {

/// Own rows that have left the window, and get codes from this number on. Fewer rows cost a step
/// little when they are attended exactly. The host gains less by codes, because it attends rows
/// about as fast as it scans codes. Tests lower the host's number.
inline constexpr std::int64_t least_coded_on_device = 2048;
inline std::int64_t least_coded_on_host = 12288;

/// The codes of the first own rows of a session, in all layers.
class OwnCodes {
 public:
  /// wanted: the session's own rows are to get codes at all. A rule judges rows as they are, and
  /// without a tail all own rows are attended.
  OwnCodes(SessionCore& session, bool wanted) : session_(session), wanted_(wanted) {}

  /// Returns the number of first own rows that have codes.
  std::int64_t tokens() const { return tokens_; }
  /// Returns their index. REQUIRES: tokens() > 0.
  const SegmentIndex& index() const { return *segment_.indices[0]; }

  /// Returns whether a step of the first layer that is attention should make codes first. All
  /// layers of attention have the same tokens then.
  bool due() const;
  /// Returns the most tokens of the next step in which steps of one token would make no codes but
  /// at its begin.
  std::int64_t tokens_until_due() const;
  /// Makes codes of the rows before the window and gives them to the device. If there is no memory
  /// for them, it tries again when the rows are twice as many. REQUIRES: due, and all steps that
  /// went ahead are settled.
  void make();
  /// Rows of a layer have been forgotten: their codes count no more.
  void forget(std::int64_t layer);
  /// The session has rows of another one: they get codes as if making them had just been tried.
  void start() { tried_ = session_.left_window(session_.shape.first_attention()); }

 private:
  SessionCore& session_;
  bool wanted_;
  std::int64_t tokens_ = 0;
  std::int64_t tried_ = 0;  // own rows before the window when making codes was last tried
  Segment segment_ = {};    // these rows, with their index of codes
};

}  // namespace topkv
