#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "src/core/convert.h"
#include "src/core/stopwatch.h"
#include "src/model/forward.h"
#include "src/model/model_impl.h"
#include "src/model/sampler.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// A forward pass of the model, given back at the end.
class Lease {
 public:
  explicit Lease(const Model::Impl& model) : model_(model), forward_(model.take_forward()) {}
  ~Lease() { model_.keep(std::move(forward_)); }
  Lease(const Lease&) = delete;  // gives back once
  Lease& operator=(const Lease&) = delete;
  Forward& operator*() const { return *forward_; }

 private:
  const Model::Impl& model_;
  std::unique_ptr<Forward> forward_;
};

/// Takes back what a call gave to a session, unless it is kept: a call that fails leaves the
/// session as it was.
class Undo {
 public:
  explicit Undo(Session& session) : session_(&session), own_(session.own_tokens()) {}
  ~Undo() {
    if (session_ == nullptr) return;
    try {
      session_->truncate(own_);
    } catch (const std::exception&) {
      // Only a device that no longer works: the session then refuses all calls itself.
    }
  }
  Undo(const Undo&) = delete;  // belongs to one call
  Undo& operator=(const Undo&) = delete;
  void keep() { session_ = nullptr; }

 private:
  Session* session_;
  std::int64_t own_;
};

/// Runs tokens at positions first and on through the network, chunk by chunk; take(count) is called
/// after each chunk.
template <class Take>
void feed(Forward& forward, std::span<const Token> tokens, std::int64_t first,
          const AttendFn& attend, const Take& take) {
  const auto chunk = static_cast<std::size_t>(session_chunk);
  for (std::size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const auto piece = tokens.subspan(begin, std::min(chunk, tokens.size() - begin));
    forward.run(piece, first + static_cast<std::int64_t>(begin),
                first + static_cast<std::int64_t>(tokens.size()), attend);
    take(static_cast<std::int64_t>(piece.size()));
  }
}

template <class Take>
void feed(Forward& forward, Session& session, std::span<const Token> tokens, const Take& take) {
  feed(
      forward, tokens, session.tokens(),
      [&session](const AttentionStep& step) { session.attend(step); }, take);
}

}  // namespace

GenerateResult Model::generate(Session& session, std::span<const Token> prompt,
                               const GenerateOptions& options, const TokenFn& on_token) const {
  if (prompt.empty())
    throw InvalidArgument("the prompt is empty; generation needs at least one token");
  if (options.max_tokens < 0) {
    throw InvalidArgument(
        fmt::format("{} tokens to generate; expected 0 or more", options.max_tokens));
  }
  impl_->check_tokens(prompt);
  impl_->check_session(session);
  const ModelConfig& config = impl_->config;
  Sampler sampler(options.sampling);
  impl_->check_reach(session.tokens() + static_cast<std::int64_t>(prompt.size()));
  const Lease lease(*impl_);
  Forward& forward = *lease;
  const bool greedy = options.sampling.temperature == 0;
  std::vector<float> logits(greedy ? 0 : static_cast<std::size_t>(config.vocab_size));
  Token next = 0;
  const auto choose = [&](std::int64_t count) {
    if (greedy) {
      next = forward.best(count - 1);
    } else {
      forward.logits(count - 1, 1, logits.data());
      if (first_not_finite(logits.data(), std::ssize(logits)) >= 0) fail_not_finite();
    }
  };
  const double searched_before = session.stats().search_seconds;
  const ForwardTimes before = forward.times();

  GenerateResult result;
  Undo undo(session);
  const Stopwatch prompting;
  impl_->blaming_weights([&] { feed(forward, session, prompt, choose); });
  result.prompt_seconds = prompting.seconds();

  const Stopwatch decoding;
  while (static_cast<std::int64_t>(result.tokens.size()) < options.max_tokens) {
    const Token token = greedy ? next : sampler.sample(logits);
    if (std::find(config.eos.begin(), config.eos.end(), token) != config.eos.end()) {
      result.ended = true;
      break;
    }
    result.tokens.push_back(token);
    if (on_token && !on_token(token)) break;
    if (static_cast<std::int64_t>(result.tokens.size()) == options.max_tokens) break;
    impl_->check_reach(session.tokens() + 1);
    impl_->blaming_weights(
        [&] { feed(forward, session, std::span(&result.tokens.back(), 1), choose); });
    ++result.steps;
  }
  undo.keep();
  result.decode_seconds = decoding.seconds();
  result.times = forward.times() - before;
  result.times.search = session.stats().search_seconds - searched_before;
  result.times.attention -= result.times.search;
  return result;
}

std::vector<float> Model::logits(Session& session, std::span<const Token> tokens) const {
  impl_->check_session(session);
  Undo undo(session);
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
  impl_->check_reach(first + static_cast<std::int64_t>(tokens.size()));
  const ModelConfig& config = impl_->config;
  const Lease lease(*impl_);
  Forward& forward = *lease;
  std::vector<float> logits(tokens.size() * static_cast<std::size_t>(config.vocab_size));
  float* next = logits.data();
  impl_->blaming_weights([&] {
    feed(forward, tokens, first, attend, [&](std::int64_t count) {
      forward.logits(0, count, next);
      next += count * config.vocab_size;
    });
  });
  return logits;
}

}  // namespace topkv
