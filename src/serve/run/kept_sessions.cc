#include "src/serve/run/kept_sessions.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "src/core/text/common_tokens.h"

namespace topkv::serve {
namespace {

std::int64_t row_bytes(const Context& of) { return of.shape().bytes_per_token(of.dtype()); }

}  // namespace

void KeptSessions::take_out(std::list<Entry>::iterator entry, std::list<Entry>& to) {
  bytes_ -= entry->bytes;
  to.splice(to.end(), kept_, entry);
}

void KeptSessions::keep(KeptSession kept) {
  kept.session.snapshot();  // where the next turn may come back to; no device has its states then
  const SessionStats& stats = kept.session.stats();
  const std::int64_t bytes = kept.most_tokens * row_bytes(kept.session.context()) +
                             stats.coded_bytes + stats.states_bytes + stats.draft_bytes;
  if (bytes > most_bytes_) return;
  const std::int64_t coded = stats.coded_tokens;
  std::list<Entry> last, gone;  // gone: ends when the mutex is free again
  last.push_back({.kept = std::move(kept), .bytes = bytes, .coded_tokens = coded});
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
  kept_.splice(kept_.end(), last);
  while (bytes_ > most_bytes_ || kept_.size() > most) take_out(kept_.begin(), gone);
}

std::optional<KeptSessions::Found> KeptSessions::take(
    const std::shared_ptr<const ServedContext>& context, std::span<const Token> prompt,
    std::int64_t capacity) {
  if (prompt.empty()) return {};
  const std::lock_guard lock(mutex_);
  auto best = kept_.end();
  std::size_t longest = 1;
  for (auto one = kept_.begin(); one != kept_.end(); ++one) {
    const KeptSession& kept = one->kept;
    if (kept.context.lock() != context || kept.session.options().capacity < capacity) continue;
    const std::size_t alike = common_tokens(kept.tokens, prompt.first(prompt.size() - 1));
    const auto common =
        static_cast<std::size_t>(kept.session.reachable(static_cast<std::int64_t>(alike)));
    if (common < longest || 2 * common < kept.tokens.size()) continue;
    // Codes of the session's own tokens were learned on all of these: none may be forgotten.
    if (one->coded_tokens > static_cast<std::int64_t>(common)) continue;
    best = one;
    longest = common;
  }
  if (best == kept_.end()) return {};
  std::list<Entry> found;
  take_out(best, found);
  return Found{.kept = std::move(found.front().kept), .common = static_cast<std::int64_t>(longest)};
}

bool KeptSessions::give_up_oldest() {
  std::list<Entry> gone;
  const std::lock_guard lock(mutex_);
  if (kept_.empty()) return false;
  take_out(kept_.begin(), gone);
  return true;
}

void KeptSessions::give_up_unserved() {
  std::list<Entry> gone;
  const std::lock_guard lock(mutex_);
  for (auto one = kept_.begin(); one != kept_.end();) {
    const auto next = std::next(one);
    if (one->kept.context.expired()) take_out(one, gone);
    one = next;
  }
}

std::int64_t KeptSessions::count() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(kept_);
}

std::int64_t KeptSessions::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace topkv::serve
