// Sessions of answers that have ended, for prompts that go on from their text: the next turn of a
// conversation reads only the tokens that are new.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "src/serve/request/served_context.h"
#include "topkv/session.h"

namespace topkv::serve {

struct KeptSession {
  Session session;
  std::weak_ptr<const ServedContext> context;  ///< which the session is over
  std::vector<Token> tokens;                   ///< the session's own
  /// Most tokens that the session ever had of its own: the memory of their rows stays taken.
  std::int64_t most_tokens = 0;
};

/// Sessions within a budget of memory; the one that was used longest ago is given up first. A
/// session belongs to one owner at a time: whoever takes it, takes it out. Safe from many threads.
class KeptSessions {
 public:
  static constexpr std::size_t most = 64;  ///< sessions

  /// most_bytes: host memory that the sessions may take together; 0: none is kept.
  explicit KeptSessions(std::int64_t most_bytes) : most_bytes_(most_bytes) {}

  bool enabled() const { return most_bytes_ > 0; }

  /// Adds a session as the one that was used last, and gives up others beyond the budget. Throws
  /// what Session::stats throws.
  void keep(KeptSession session);

  struct Found {
    KeptSession kept;
    /// Tokens of its own that the prompt begins with, and that the session can go back to.
    std::int64_t common = 0;
  };
  /// Takes out the session whose text has the longest beginning in common with a prompt behind the
  /// context. At least one token of the prompt is left to be read. None is found where the prompt
  /// shares less than half of each session's text: the rest would be lost to its own conversation.
  /// capacity: tokens of its own that the session must have room for.
  std::optional<Found> take(const std::shared_ptr<const ServedContext>& context,
                            std::span<const Token> prompt, std::int64_t capacity);

  /// Gives up the session that was used longest ago. False: there is none.
  bool give_up_oldest();
  /// Gives up sessions over contexts that are served no longer.
  void give_up_unserved();

  std::int64_t count() const;
  std::int64_t bytes() const;

 private:
  struct Entry {
    KeptSession kept;
    std::int64_t bytes = 0;         // of host memory
    std::int64_t coded_tokens = 0;  // of the session's own
  };

  /// Moves an entry to others that end without the mutex. Under it.
  void take_out(std::list<Entry>::iterator entry, std::list<Entry>& to);

  const std::int64_t most_bytes_;
  mutable std::mutex mutex_;  // of those below
  std::list<Entry> kept_;     // the one that was used last comes last
  std::int64_t bytes_ = 0;    // of all
};

}  // namespace topkv::serve
