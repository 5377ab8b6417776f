// Logits of tokens that follow a session, or whose attention is the caller's.
#include <fmt/format.h>

#include <algorithm>

#include "src/model/generate/generate_parts.h"
#include "topkv/error.h"

namespace topkv {
namespace {

std::vector<float> logits_of_text(const Model::Impl& model, std::span<const Token> tokens,
                                  std::int64_t first, const TextLayers& text) {
  model.check_tokens(tokens);
  const std::int64_t length = first + std::ssize(tokens);
  model.check_reach(length);
  const std::int64_t vocabulary = model.config.vocab_size;
  const ForwardLease lease(model.forwards);
  Forward& forward = *lease;
  std::vector<float> logits(tokens.size() * static_cast<std::size_t>(vocabulary));
  model.blaming_weights([&] {
    for (std::int64_t begin = 0; begin < std::ssize(tokens); begin += session_chunk) {
      const std::int64_t count = std::min(session_chunk, std::ssize(tokens) - begin);
      forward.run(tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)),
                  first + begin, length, text);
      forward.logits(0, count, logits.data() + begin * vocabulary);
    }
  });
  return logits;
}

}  // namespace

std::vector<float> Model::logits(Session& session, std::span<const Token> tokens) const {
  impl_->check_session(session);
  if (tokens.empty()) throw InvalidArgument("logits of no tokens; give at least one");
  SessionRollback undo(session);
  std::vector<float> logits =
      logits_of_text(*impl_, tokens, session.tokens(), TextLayers::of(session));
  undo.keep();
  return logits;
}

std::vector<float> Model::logits(std::span<const Token> tokens, std::int64_t first,
                                 const AttendFn& attend) const {
  if (tokens.empty()) throw InvalidArgument("logits of no tokens; give at least one");
  if (first < 0) throw InvalidArgument(fmt::format("logits of tokens from position {}", first));
  if (!impl_->config.attention.state_size.empty()) {
    throw Unsupported(
        "logits with an attention of the caller's: the model has layers with a recurrent state, "
        "which only a session keeps; give a session");
  }
  TextLayers text;
  text.attend = attend;
  return logits_of_text(*impl_, tokens, first, text);
}

}  // namespace topkv
