// The answers to one request, on their way from the scheduler to the thread that sends them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "src/serve/request/problem.h"

namespace topkv::serve {

/// A token as "logprobs" have it.
struct ToldToken {
  std::string name;                    ///< token_name
  std::string bytes;                   ///< that it adds to the text; empty for special tokens
  std::optional<double> logprob = {};  ///< none: the first token of all has nothing before it
  struct Alternative {
    std::string name;
    std::string bytes;
    double logprob = 0;
  };
  std::vector<Alternative> top = {};  ///< best first
};

/// What has become of one of the answers.
struct Event {
  std::size_t choice = 0;
  std::string text = {};  ///< more of it, in whole characters; may be empty
  /// Of the tokens that came, where they were asked for. With an echo those of the prompt are
  /// first.
  std::vector<ToldToken> logprobs = {};
  std::string finish = {};  ///< "stop" or "length" where it has ended
};

/// All events of an answer as one. events: in order, of one answer.
Event together(const std::vector<Event>& events);

/// Tokens that a request took.
struct Usage {
  std::int64_t context = 0;    ///< once for each prompt
  std::int64_t prompt = 0;     ///< behind the context; of all prompts, of one answer to each
  std::int64_t kept = 0;       ///< of the prompt's, the most that a kept session had
  std::int64_t generated = 0;  ///< of all answers together
};

/// How long a request took so far, in seconds.
struct AnswerTimes {
  double waited = 0;     ///< until the first of its answers left the queue
  double read = 0;       ///< from then until the first token came
  double generated = 0;  ///< from then until the last token came
};

/// What a request took in all.
struct AnswerTotals {
  Usage usage = {};
  AnswerTimes times = {};
};

/// How far the prompts of a request are read, for a client that waits.
struct ReadingState {
  bool begun = false;      ///< one of the answers has left the queue
  std::int64_t read = 0;   ///< tokens of the prompts of all answers
  std::int64_t total = 0;  ///< tokens that they have
};

/// One thread puts, another takes; anybody may cancel.
class Answer {
 public:
  /// choices: answers to all prompts together; to_read: tokens that are read for them.
  Answer(std::size_t choices, Usage usage, std::int64_t to_read)
      : running_(choices), usage_(usage), reading_{.total = to_read} {}

  /// One of the answers has left the queue.
  void begin();
  /// The first answer to a prompt goes on from a kept session, which had that many tokens of the
  /// prompt.
  void reuse(std::int64_t tokens);
  /// More tokens of a prompt are read.
  void read(std::int64_t tokens);
  /// Adds to what waits, unless nothing is in it. tokens: how many more were generated.
  void put(Event event, std::int64_t tokens);
  /// Ends all answers.
  void fail(Problem problem);

  /// Nobody waits for the rest.
  void cancel() { cancelled_ = true; }
  bool cancelled() const { return cancelled_; }

  /// The next event, where one comes in that time. Throws the Problem that ended it, once all that
  /// came before is taken.
  std::optional<Event> next(std::chrono::milliseconds wait);
  /// Returns when an answer has left the queue, when there is an event or a problem, or after that
  /// time.
  void wait_for_begin(std::chrono::milliseconds wait);
  /// Whether all answers have ended and were taken.
  bool finished() const;
  Usage usage() const;
  AnswerTotals totals() const;
  ReadingState reading() const;

 private:
  using Clock = std::chrono::steady_clock;

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Event> events_;
  std::optional<Problem> problem_;
  std::size_t running_;
  Usage usage_;
  ReadingState reading_;
  const Clock::time_point asked_ = Clock::now();
  std::optional<Clock::time_point> begun_, first_, last_;  // the queue's end; tokens
  std::atomic<bool> cancelled_ = false;
};

}  // namespace topkv::serve
