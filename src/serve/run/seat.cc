#include "src/serve/run/seat.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "src/serve/answer/token_name.h"

namespace topkv::serve {

ToldToken told_token(const Tokenizer& tokenizer, const TokenLogprobs& of) {
  ToldToken token = {token_name(tokenizer, of.chosen.token),
                     tokenizer.bytes_of_token(of.chosen.token), of.chosen.logprob};
  for (const TokenLogprob& other : of.top)
    token.top.push_back(
        {token_name(tokenizer, other.token), tokenizer.bytes_of_token(other.token), other.logprob});
  return token;
}

std::int64_t Seat::promised() const {
  const std::int64_t own = session ? session->own_tokens() : 0;
  const std::int64_t rows = std::max<std::int64_t>(0, capacity - std::max(own, most_tokens));
  const std::int64_t states = tokens < most_states ? most_states : 0;
  // A session's statistics may wait for its device.
  const bool drafted = draft_bytes > 0 && session && session->stats().draft_bytes > 0;
  return rows * row_bytes + states * state_bytes + (drafted ? 0 : draft_bytes);
}

GenerateOptions Seat::options(const Tokenizer& tokenizer) {
  GenerateOptions options = question->options;
  options.sampling.seed += draw;
  const auto prompt = question->prompt.begin();
  options.before.insert(options.before.end(), prompt, prompt + kept);
  if (options.logprobs >= 0)
    options.on_logprobs = [this, &tokenizer](const TokenLogprobs& of) {
      logprobs.push_back(told_token(tokenizer, of));
    };
  if (scores())
    options.on_prompt_logprobs = [this, &tokenizer](const TokenLogprobs& of) {
      if (echoed) return;  // the answer begins anew
      if (++scored > question->unscored) logprobs.push_back(told_token(tokenizer, of));
      if (scored == std::ssize(question->prompt)) put_echo();
    };
  return options;
}

void Seat::begin_echo(const Tokenizer& tokenizer) {
  if (echoed) return;
  logprobs.clear();
  const Token first = question->prompt.front();
  scored = 1;
  if (scores() && question->unscored == 0)
    logprobs.push_back({token_name(tokenizer, first), tokenizer.bytes_of_token(first)});
  if (!scores() || question->prompt.size() == 1) put_echo();
}

void Seat::put_echo() {
  echoed = true;
  answer->put({.choice = choice, .text = question->echo, .logprobs = std::exchange(logprobs, {})},
              0);
}

void Seat::tell_reading() {
  const std::int64_t now = std::min(session->own_tokens(), std::ssize(question->prompt));
  if (now > read) answer->read(now - std::exchange(read, now));
}

void Seat::forget_session() {
  session.reset();
  kept = most_tokens = 0;
  answer->read(-std::exchange(read, 0));
}

}  // namespace topkv::serve
