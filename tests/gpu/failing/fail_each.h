// Calls of CUDA, each of which fails in turn, while what a test calls an attempt goes on: where a
// part of it throws, the part is done again. And such parts of attempts.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "tests/gpu/failing/failing_calls.h"
#include "tests/support/session_feed.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace test {

/// A part of an attempt that may fail; gives whether it did.
using Call = std::function<bool(const std::function<void()>&)>;

/// Has each of these calls that attempt(call) makes within its call()s fail in turn, the n-th, then
/// that after n + n / stride, until none is left; gives how many there were. REQUIRES: what an
/// attempt made is gone when it returns. (Where the device has no memory for making codes or
/// clusters, the host makes them: not every failure is told.)
inline std::int64_t fail_each(Calls calls, const std::function<void(const Call&)>& attempt,
                              std::int64_t stride = 1'000'000) {
  const auto reaches = [&](std::int64_t n) {
    std::int64_t left = n;
    int failures = 0;
    attempt([&](const std::function<void()>& work) {
      const std::int64_t before = left;
      bool failed = false;
      {
        const FailingCall failing(calls, before);
        try {
          work();
        } catch (const topkv::Error& error) {
          // A step that goes ahead may tell after its call has returned, once more when it is
          // taken back; what throws without a failure is no part of this test.
          if (n < 0 || FailingCall::left() >= 0 || ++failures > 2) throw;
          failed = true;
          EXPECT_GT(std::strlen(error.what()), 20U);
        }
        left = FailingCall::left();
      }
      return failed;
    });
    return n >= 0 && left < 0;
  };
  for (int warm = 0; warm < 2; ++warm) reaches(-1);  // what a device keeps from the first time
  const std::int64_t before = device_things();
  for (std::int64_t n = 0;; n += 1 + n / stride) {
    const bool reached = reaches(n);
    EXPECT_EQ(device_things(), before)
        << "lost when " << FailingCall::name() << ", number " << n << ", failed";
    if (!reached) return n;
    if (testing::Test::HasFailure()) {
      ADD_FAILURE() << "when " << FailingCall::name() << ", number " << n << ", failed";
      return n;
    }
  }
}

/// A session, made again until that goes well.
inline std::unique_ptr<topkv::Session> open_session(
    const Call& call, const std::shared_ptr<const topkv::Context>& context,
    const topkv::RetrievalOptions& options, const topkv::Device& device) {
  std::unique_ptr<topkv::Session> session;
  while (call([&] { session = std::make_unique<topkv::Session>(context, options, device); })) {
    EXPECT_EQ(session, nullptr);
  }
  return session;
}

/// Whether what is no part of a failing call goes well: not where a session is lost.
inline bool is_well(const std::function<void()>& work) {
  try {
    work();
  } catch (const topkv::Error&) {
    return false;
  }
  return true;
}

/// Gives the session its next tokens, so many at a time, each step again where it fails. False:
/// the session says that it is lost.
inline bool take_steps(const Call& call, topkv::Session& session, Feed& feed,
                       const std::vector<std::int64_t>& steps) {
  const std::int64_t layers = session.context().shape().layers;
  for (std::size_t i = 0; i < steps.size();) {
    const std::int64_t at = session.tokens();
    bool failed = false;
    for (std::int64_t l = 0; l < layers && !failed; ++l)
      failed = call([&] { feed.attend(session, l, at, steps[i]); });
    if (failed) {
      if (!is_well([&] { session.truncate(at - session.context().tokens()); })) return false;
      continue;
    }
    // What a step that goes ahead met after its call is told here at the latest.
    if (!is_well([&] { session.stats(); })) return false;
    ++i;
  }
  return true;
}

}  // namespace test
