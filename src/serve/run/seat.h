// An answer on its way through the scheduler: first in the queue, then with a session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/core/threads/stopwatch.h"
#include "src/serve/answer/answer.h"
#include "src/serve/request/question.h"
#include "topkv/generation.h"
#include "topkv/session.h"
#include "topkv/tokenizer.h"

namespace topkv::serve {

/// A token and its alternatives as clients are given them.
ToldToken told_token(const Tokenizer& tokenizer, const TokenLogprobs& of);

/// Of the scheduler's thread, once it is out of the queue.
struct Seat {
  std::shared_ptr<const Question> question;
  std::shared_ptr<Answer> answer;
  std::size_t choice = 0;        // of the request's
  std::uint64_t draw = 0;        // of the question's, which its seed is moved by
  std::int64_t capacity = 0;     // tokens of the session's own
  std::int64_t row_bytes = 0;    // of one token, all layers
  std::int64_t draft_bytes = 0;  // of what a draft model or layer keeps; 0: there is none
  std::int64_t state_bytes = 0;  // of one recurrent state of all layers; 0: the model has none
  std::optional<Session> session;
  std::int64_t kept = 0;         // tokens of the prompt that the session had when it was found
  std::int64_t reused = 0;       // of these, those that the client is told
  std::int64_t most_tokens = 0;  // that the session ever had of its own: their rows are committed
  GenerationBatch::Id id = {};
  std::vector<ToldToken> logprobs;  // of tokens whose text has not come
  std::int64_t scored = 0;          // tokens of the prompt
  bool echoed = false;
  Stopwatch since_start;
  std::int64_t read = 0;  // tokens of the prompt
  std::int64_t tokens = 0;

  /// Recurrent states that an answer takes at most: two snapshots of the prompt (before its end,
  /// and at its end), the last state, the one before it, and memory for the next one.
  static constexpr std::int64_t most_states = 5;

  /// Returns the bytes of host memory of a new session: its rows, its recurrent states, and what a
  /// draft model or layer keeps.
  std::int64_t bytes() const {
    return capacity * row_bytes + most_states * state_bytes + draft_bytes;
  }
  /// Returns the bytes of these that are not committed. The states are once some tokens are chosen.
  std::int64_t promised() const;
  /// Whether all tokens of the prompt are fed, for their log-probabilities.
  bool scores() const { return question->options.prompt_logprobs >= 0; }
  /// The question's, with the seed of this answer, and callbacks that collect log-probabilities.
  /// Seat and tokenizer outlive them.
  GenerateOptions options(const Tokenizer& tokenizer);
  /// Begins the prompt's log-probabilities, or puts the echo when there are none to wait for. Does
  /// nothing when the echo was put: an answer may begin anew.
  void begin_echo(const Tokenizer& tokenizer);
  /// Lets those who wait know how far the prompt is read.
  void tell_reading();
  /// A session is to be opened anew.
  void forget_session();

 private:
  void put_echo();
};

}  // namespace topkv::serve
