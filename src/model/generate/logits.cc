// Logits of tokens that follow a session, or whose attention is the caller's.
#include <fmt/format.h>

#include <algorithm>

#include "src/model/generate/generate_parts.h"
#include "topkv/error.h"

namespace topkv {

std::vector<float> Model::logits(Session& session, std::span<const Token> tokens) const {
  impl_->check_session(session);
  SessionRollback undo(session);
  std::vector<float> logits = this->logits(
      tokens, session.tokens(), [&session](const AttentionStep& step) { session.attend(step); });
  undo.keep();
  return logits;
}

std::vector<float> Model::logits(std::span<const Token> tokens, std::int64_t first,
                                 const AttendFn& attend) const {
  if (tokens.empty()) throw InvalidArgument("logits of no tokens; give at least one");
  impl_->check_tokens(tokens);
  if (first < 0) throw InvalidArgument(fmt::format("logits of tokens from position {}", first));
  const std::int64_t length = first + std::ssize(tokens);
  impl_->check_reach(length);
  const std::int64_t vocabulary = impl_->config.vocab_size;
  const ForwardLease lease(*impl_);
  Forward& forward = *lease;
  std::vector<float> logits(tokens.size() * static_cast<std::size_t>(vocabulary));
  impl_->blaming_weights([&] {
    for (std::int64_t begin = 0; begin < std::ssize(tokens); begin += session_chunk) {
      const std::int64_t count = std::min(session_chunk, std::ssize(tokens) - begin);
      forward.run(tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)),
                  first + begin, length, attend);
      forward.logits(0, count, logits.data() + begin * vocabulary);
    }
  });
  return logits;
}

}  // namespace topkv
