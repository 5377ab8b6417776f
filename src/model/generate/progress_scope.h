// Tokens on their way through the network, as who waits for them is told.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string_view>

#include "src/core/threads/run_with_progress.h"
#include "topkv/progress.h"

namespace topkv {

/// Runs the chunks of a text one after the other, tells progress of them, and stops one within
/// which progress throws: the exception is then rethrown. One thread.
class ProgressScope {
 public:
  /// told outlives it; empty: chunks run unwatched. total: tokens to read.
  ProgressScope(const ProgressFn& told, std::string_view stage, std::int64_t total)
      : told_(told), stage_(stage), total_(total) {}

  /// read() reads the next so many tokens: with somebody to tell, on a thread of its own, unless it
  /// is one token, which is a step as in decoding.
  template <class Read>
  void chunk(std::int64_t tokens, const Read& read) {
    if (!told_ || tokens == 1) {
      read();
    } else {
      run_watched([&](const std::stop_token&) { read(); }, [&] { tell(); });
    }
    done_ += tokens;
    if (told_) tell();
  }

 private:
  void tell() const { told_({stage_, "tokens", done_, total_}); }

  const ProgressFn& told_;
  std::string_view stage_;
  std::int64_t total_;
  std::int64_t done_ = 0;
};

}  // namespace topkv
