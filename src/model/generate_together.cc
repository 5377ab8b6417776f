// Several sessions over one context that answer in joint steps: weights, keys and codes are read
// once for all of them.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "src/core/convert.h"
#include "src/core/stopwatch.h"
#include "src/model/generate_parts.h"
#include "src/model/sampler.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// One of the sessions.
struct Answering {
  Answering(Session& of, const GenerateOptions& options)
      : session(&of), sampler(options.sampling) {}

  Session* session;
  Sampler sampler;
  std::span<const float> logits = {};  // of the next token, unless greedy
  Token next = 0;                      // greedy
  GenerateResult result = {};
};

/// What follows the sessions' last tokens: of several at once.
class Choices {
 public:
  Choices(std::size_t sessions, const GenerateOptions& options, std::int64_t vocabulary)
      : vocabulary_(static_cast<std::size_t>(vocabulary)) {
    if (options.sampling.temperature == 0) {
      best_.resize(sessions);
    } else {
      logits_.resize(sessions * vocabulary_);
    }
  }
  bool greedy() const { return logits_.empty(); }

  /// Those of `live` take what the forward pass has from place `at` on; it is kept from place
  /// `first` on, until something else is kept there.
  void take(Forward& forward, std::int64_t at, std::span<Answering* const> live,
            std::size_t first = 0) {
    if (greedy()) {
      forward.best(at, std::span(best_).subspan(first, live.size()));
      for (std::size_t i = 0; i < live.size(); ++i) live[i]->next = best_[first + i];
      return;
    }
    const auto logits = std::span(logits_).subspan(first * vocabulary_, live.size() * vocabulary_);
    forward.logits(at, std::ssize(live), logits.data());
    if (first_not_finite(logits.data(), std::ssize(logits)) >= 0) fail_not_finite();
    for (std::size_t i = 0; i < live.size(); ++i)
      live[i]->logits = logits.subspan(i * vocabulary_, vocabulary_);
  }

 private:
  std::size_t vocabulary_;
  std::vector<Token> best_;
  std::vector<float> logits_;
};

double search_seconds(std::span<Session* const> sessions) {
  double seconds = 0;
  for (const Session* session : sessions) seconds += session->stats().search_seconds;
  return seconds;
}

}  // namespace

std::vector<GenerateResult> Model::generate_together(std::span<Session* const> sessions,
                                                     std::span<const std::vector<Token>> prompts,
                                                     const GenerateOptions& options,
                                                     const TokenOfFn& on_token) const {
  const ModelConfig& config = impl_->config;
  if (sessions.size() != prompts.size() || sessions.empty() || std::ssize(sessions) > session_chunk)
    throw InvalidArgument(
        fmt::format("generate_together: {} sessions and {} prompts; expected as many of each, from "
                    "1 to {}",
                    sessions.size(), prompts.size(), session_chunk));
  Session::check_together(sessions);
  for (std::size_t i = 0; i < sessions.size(); ++i)
    check_generation(*impl_, *sessions[i], prompts[i], options);
  std::vector<GenerateResult> results;
  std::vector<std::unique_ptr<Undo>> undo;
  for (Session* session : sessions) undo.push_back(std::make_unique<Undo>(*session));
  const auto keep = [&] {
    for (const auto& one : undo) one->keep();
  };
  std::int64_t asked = 0;
  for (const std::vector<Token>& prompt : prompts) asked += std::ssize(prompt);
  if (config.dual_chunk.chunk_size > 0) {  // positions of a step are those of one text
    std::int64_t read = 0;
    GenerateOptions of_one = options;
    if (options.progress) {
      of_one.progress = [&](const Progress& one) {
        options.progress({one.stage, one.unit, read + one.done, asked});
      };
    }
    for (std::size_t i = 0; i < sessions.size(); ++i) {
      results.push_back(generate(*sessions[i], prompts[i], of_one,
                                 [&](Token token) { return !on_token || on_token(i, token); }));
      read += std::ssize(prompts[i]);
    }
    keep();
    for (std::size_t i = 1; i < results.size(); ++i)
      results[0].times += std::exchange(results[i].times, {});
    return results;
  }

  std::vector<Answering> all;
  for (Session* session : sessions) all.emplace_back(*session, options);
  Choices choices(sessions.size(), options, config.vocab_size);
  const Lease lease(*impl_);
  Forward& forward = *lease;
  const ForwardTimes before = forward.times();
  Reading reading(options.progress, "prompt", asked);
  const double searched_before = search_seconds(sessions);
  for (std::size_t i = 0; i < all.size(); ++i) {
    impl_->check_reach(sessions[i]->tokens() + std::ssize(prompts[i]));
    const Stopwatch prompting;
    impl_->blaming_weights([&] {
      feed(forward, *sessions[i], prompts[i], reading, [&](std::int64_t count) {
        Answering* const one = &all[i];
        choices.take(forward, count - 1, {&one, 1}, i);
      });
    });
    all[i].result.prompt_seconds = prompting.seconds();
  }

  const Stopwatch decoding;
  std::vector<Answering*> live;
  for (Answering& one : all) live.push_back(&one);
  std::vector<Session*> stepped;
  std::vector<Token> tokens;
  std::vector<std::int64_t> positions;
  /// Whether an answer goes on behind its next token.
  const auto goes_on = [&](Answering& one) {
    std::vector<Token>& answer = one.result.tokens;
    if (std::ssize(answer) >= options.max_tokens) return false;
    const Token token = choices.greedy() ? one.next : one.sampler.sample(one.logits);
    if (std::ranges::count(config.eos, token) > 0) {
      one.result.ended = true;
      return false;
    }
    answer.push_back(token);
    if (on_token && !on_token(static_cast<std::size_t>(&one - all.data()), token)) return false;
    return std::ssize(answer) < options.max_tokens;
  };
  while (true) {
    std::erase_if(live, [&](Answering* one) {
      if (goes_on(*one)) return false;
      one->result.decode_seconds = decoding.seconds();
      return true;
    });
    if (live.empty()) break;
    stepped.clear();
    tokens.clear();
    positions.clear();
    for (Answering* one : live) {
      impl_->check_reach(one->session->tokens() + 1);
      stepped.push_back(one->session);
      tokens.push_back(one->result.tokens.back());
      positions.push_back(one->session->tokens());
      ++one->result.steps;
    }
    impl_->blaming_weights([&] {
      forward.run_each(tokens, positions, [&](const AttentionStep& step) {
        AttentionStep of_each = step;
        of_each.tokens = 1;
        Session::attend_together(stepped, of_each);
      });
      choices.take(forward, 0, live);
    });
  }
  keep();
  ForwardTimes& times = all[0].result.times;
  times = forward.times() - before;
  times.search = search_seconds(sessions) - searched_before;
  times.attention -= times.search;
  for (Answering& one : all) results.push_back(std::move(one.result));
  return results;
}

}  // namespace topkv
