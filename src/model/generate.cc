#include <fmt/format.h>

#include <algorithm>

#include "src/core/convert.h"
#include "src/core/stopwatch.h"
#include "src/model/generate_parts.h"
#include "src/model/sampler.h"
#include "topkv/error.h"

namespace topkv {

void check_generation(const Model::Impl& model, const Session& session,
                      std::span<const Token> prompt, const GenerateOptions& options) {
  if (prompt.empty())
    throw InvalidArgument("the prompt is empty; generation needs at least one token");
  if (options.max_tokens < 0) {
    throw InvalidArgument(
        fmt::format("{} tokens to generate; expected 0 or more", options.max_tokens));
  }
  model.check_tokens(prompt);
  model.check_session(session);
}

GenerateResult Model::generate(Session& session, std::span<const Token> prompt,
                               const GenerateOptions& options, const TokenFn& on_token) const {
  check_generation(*impl_, session, prompt, options);
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
      forward.best(count - 1, {&next, 1});
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
  Reading reading(options.progress, "prompt", std::ssize(prompt));
  impl_->blaming_weights([&] { feed(forward, session, prompt, reading, choose); });
  result.prompt_seconds = prompting.seconds();

  const ProgressFn nobody;
  Reading answer(nobody, {}, options.max_tokens);
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
        [&] { feed(forward, session, std::span(&result.tokens.back(), 1), answer, choose); });
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
  const ProgressFn nobody;
  Reading reading(nobody, {}, std::ssize(tokens));
  impl_->blaming_weights([&] {
    feed(forward, tokens, first, attend, reading, [&](std::int64_t count) {
      forward.logits(0, count, next);
      next += count * config.vocab_size;
    });
  });
  return logits;
}

}  // namespace topkv
