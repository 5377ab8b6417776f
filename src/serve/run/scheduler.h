// Answers requests in joint steps: those over one context together, contexts in turn. Of all
// prompts one is read at a time, a chunk between two steps (PromptTurn). One thread does all of it;
// the threads of the HTTP server only put questions and wait.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "src/serve/answer/answer.h"
#include "src/serve/request/question.h"
#include "src/serve/request/served_context.h"
#include "src/serve/run/metrics.h"
#include "src/serve/run/promised_memory.h"
#include "topkv/model.h"

namespace topkv::serve {

struct SchedulerLimits {
  std::int64_t queue = 64;  ///< answers that wait
  std::int64_t batch = 16;  ///< answers over one context at a time
  /// Tokens of a prompt and its answer. Sessions have room for that many, so that they can be kept.
  std::int64_t room = 16384;
};

struct Seat;

/// Receives what the turns of a session attended so far in each layer, [layers], when an answer
/// ends whose prompt was a turn. context: the name of its context; empty: none. Called by the
/// thread that answers.
using TurnsFn =
    std::function<void(const std::string& context, std::span<const PrefillShare> shares)>;

/// Safe from many threads.
class Scheduler {
 public:
  /// Model, memory and metrics outlive it. on_turns: may be empty.
  Scheduler(const Model& model, SchedulerLimits limits, PromisedMemory& memory, Metrics& metrics,
            TurnsFn on_turns = {});
  /// Ends what is being answered.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;  // a thread works on it
  Scheduler& operator=(const Scheduler&) = delete;

  /// Puts it into the queue. Throws Problem: 429 where that is full, 503 where the server ends.
  std::shared_ptr<Answer> ask(Question question);
  /// Likewise several questions of one request, over one context; all of them or none. Their
  /// answers are numbered question by question.
  std::shared_ptr<Answer> ask(std::vector<Question> questions);

  /// From here on nothing is taken.
  void close();
  /// Whether nothing waits and nothing is answered.
  bool idle() const;
  /// Ends all answers, with a problem. One thread calls it.
  void end_all();

 private:
  struct Lane;

  void run();
  void admit(Lane& lane);
  bool find_room(Lane& lane, Seat& seat);
  void start(Lane& lane);
  void open(const Lane& lane, Seat& seat);
  void join(Lane& lane, Seat& seat);
  void drop_cancelled(Lane& lane);
  bool length_matters(std::int64_t tokens) const;
  void tell_turns(const Seat& seat) const;
  void keep(const Lane& lane, Seat& seat, std::span<const Token> answer);
  bool begins_again(Lane& lane, std::unique_ptr<Seat>& seat, const std::exception_ptr& error);
  static const Lane* next_to_read(const std::vector<Lane*>& lanes);
  void step(Lane& lane, bool reads);
  void count();

  const Model& model_;
  SchedulerLimits limits_;
  PromisedMemory& memory_;
  Metrics& metrics_;
  TurnsFn on_turns_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Lanes come and go under the mutex, and so do answers that wait. Those that run are the
  // thread's, and it alone ends lanes.
  std::vector<std::unique_ptr<Lane>> lanes_;  // in the order of their first questions
  std::int64_t waiting_ = 0;
  bool running_ = false;  // some answer
  bool closed_ = false;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace topkv::serve
