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
  Answering(Session& of, const GenerateOptions& options, std::int64_t vocabulary)
      : session(&of), sampler(options.sampling) {
    if (options.sampling.temperature != 0) logits.resize(static_cast<std::size_t>(vocabulary));
  }
  bool greedy() const { return logits.empty(); }

  /// Takes what the forward pass has at place `at`.
  void choose(Forward& forward, std::int64_t at) {
    if (greedy()) {
      next = forward.best(at);
      return;
    }
    forward.logits(at, 1, logits.data());
    if (first_not_finite(logits.data(), std::ssize(logits)) >= 0) fail_not_finite();
  }

  Session* session;
  Sampler sampler;
  std::vector<float> logits = {};  // of the next token; empty: greedy
  Token next = 0;
  GenerateResult result = {};
};

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
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    if (sessions[i] == nullptr)
      throw InvalidArgument(fmt::format("generate_together: session {} is null", i));
    if (std::ranges::count(sessions, sessions[i]) > 1)
      throw InvalidArgument(fmt::format(
          "generate_together: session {} is there twice; give each once, or a fork of it", i));
    check_generation(*impl_, *sessions[i], prompts[i], options);
  }
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
    return results;
  }

  std::vector<Answering> all;
  for (Session* session : sessions) all.emplace_back(*session, options, config.vocab_size);
  const Lease lease(*impl_);
  Forward& forward = *lease;
  const ForwardTimes before = forward.times();
  Reading reading(options.progress, "prompt", asked);
  for (std::size_t i = 0; i < all.size(); ++i) {
    impl_->check_reach(sessions[i]->tokens() + std::ssize(prompts[i]));
    const Stopwatch prompting;
    impl_->blaming_weights([&] {
      feed(forward, *sessions[i], prompts[i], reading,
           [&](std::int64_t count) { all[i].choose(forward, count - 1); });
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
    const Token token = one.greedy() ? one.next : one.sampler.sample(one.logits);
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
      for (std::size_t i = 0; i < live.size(); ++i)
        live[i]->choose(forward, static_cast<std::int64_t>(i));
    });
  }
  keep();
  all[0].result.times = forward.times() - before;
  for (Answering& one : all) results.push_back(std::move(one.result));
  return results;
}

}  // namespace topkv
