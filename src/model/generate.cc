#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/core/stopwatch.h"
#include "src/model/forward.h"
#include "src/model/model_impl.h"
#include "src/model/sampler.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t prompt_chunk = 256;  // bounds activations and the block of queries searched

/// Runs tokens through a session, chunk by chunk; take(hidden, rows) gets each chunk's final
/// states.
template <class Take>
void feed(Forward& forward, Session& session, std::span<const Token> tokens, const Take& take) {
  const AttendFn attend = [&session](std::int64_t layer, const float* q, const float* k,
                                     const float* v, float* out, std::int64_t count) {
    session.attend(layer, q, k, v, out, count);
  };
  for (std::size_t begin = 0; begin < tokens.size(); begin += prompt_chunk) {
    const auto chunk =
        tokens.subspan(begin, std::min<std::size_t>(prompt_chunk, tokens.size() - begin));
    const std::int64_t first = session.tokens();
    take(forward.run(chunk, first, attend), static_cast<std::int64_t>(chunk.size()));
  }
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
  const ModelConfig& config = impl_->config;
  Sampler sampler(options.sampling);
  Forward forward(config, impl_->weights, impl_->device);
  std::vector<float> logits(static_cast<std::size_t>(config.vocab_size));
  const auto last_logits = [&](const float* hidden, std::int64_t rows) {
    forward.logits(hidden + (rows - 1) * config.hidden_size, 1, logits.data());
  };
  const double searched_before = session.stats().search_seconds;

  GenerateResult result;
  const Stopwatch prompting;
  feed(forward, session, prompt, last_logits);
  result.prompt_seconds = prompting.seconds();

  const Stopwatch decoding;
  while (static_cast<std::int64_t>(result.tokens.size()) < options.max_tokens) {
    const Token token = sampler.sample(logits);
    if (std::find(config.eos.begin(), config.eos.end(), token) != config.eos.end()) {
      result.ended = true;
      break;
    }
    result.tokens.push_back(token);
    if (on_token && !on_token(token)) break;
    if (static_cast<std::int64_t>(result.tokens.size()) == options.max_tokens) break;
    feed(forward, session, std::span(&result.tokens.back(), 1), last_logits);
    ++result.steps;
  }
  result.decode_seconds = decoding.seconds();
  result.times = forward.times();
  result.times.search = session.stats().search_seconds - searched_before;
  result.times.attention -= result.times.search;
  return result;
}

std::vector<float> Model::logits(Session& session, std::span<const Token> tokens) const {
  if (tokens.empty()) throw InvalidArgument("logits of no tokens; give at least one");
  impl_->check_tokens(tokens);
  const ModelConfig& config = impl_->config;
  Forward forward(config, impl_->weights, impl_->device);
  std::vector<float> logits(tokens.size() * static_cast<std::size_t>(config.vocab_size));
  float* next = logits.data();
  feed(forward, session, tokens, [&](const float* hidden, std::int64_t rows) {
    forward.logits(hidden, rows, next);
    next += rows * config.vocab_size;
  });
  return logits;
}

}  // namespace topkv
