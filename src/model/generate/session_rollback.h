// What a session was given by a call that fails.
#pragma once

#include <cstdint>
#include <exception>

#include "topkv/session.h"

namespace topkv {

/// Takes back what a call gave to a session, unless it is kept: a call that fails leaves the
/// session as it was.
class SessionRollback {
 public:
  explicit SessionRollback(Session& session) : session_(&session), own_(session.own_tokens()) {
    session.snapshot();
  }
  ~SessionRollback() {
    if (session_ == nullptr) return;
    try {
      session_->truncate(own_);
    } catch (const std::exception&) {
      // Only a device that no longer works: the session then refuses all calls itself.
    }
  }
  SessionRollback(const SessionRollback&) = delete;  // belongs to one call
  SessionRollback& operator=(const SessionRollback&) = delete;
  void keep() { session_ = nullptr; }

 private:
  Session* session_;
  std::int64_t own_;
};

}  // namespace topkv
