#include "src/serve/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "src/core/stopwatch.h"
#include "topkv/error.h"
#include "topkv/generation.h"

namespace topkv::serve {

/// One answer: first in the queue, then with a session.
struct Scheduler::Seat {
  std::shared_ptr<const Question> question;
  std::shared_ptr<Answer> answer;
  std::size_t choice = 0;
  std::int64_t capacity = 0;   // tokens of the session's own
  std::int64_t row_bytes = 0;  // of one token, all layers
  std::optional<Session> session;
  GenerationBatch::Id id = {};
  std::vector<ToldToken> logprobs;  // of tokens whose text has not come
  Stopwatch since_start;
  std::int64_t read = 0;  // tokens of the prompt
  std::int64_t tokens = 0;

  std::int64_t bytes() const { return capacity * row_bytes; }
  /// Lets those who wait know how far the prompt is read.
  void tell_reading() {
    const std::int64_t now = std::min(session->own_tokens(), std::ssize(question->prompt));
    if (now > read) answer->read(now - std::exchange(read, now));
  }
  /// Of those that are not committed.
  std::int64_t promised() const {
    return (capacity - (session ? session->own_tokens() : 0)) * row_bytes;
  }
};

/// The answers over one context.
struct Scheduler::Lane {
  Lane(const Model& model, std::shared_ptr<const ServedContext> of)
      : context(std::move(of)), batch(model) {}

  std::shared_ptr<const ServedContext> context;
  std::deque<std::unique_ptr<Seat>> waiting;
  std::deque<std::unique_ptr<Seat>> admitted;  // without a session yet
  std::vector<std::unique_ptr<Seat>> running;
  GenerationBatch batch;  // of those that run, whose sessions outlive it
};

Scheduler::Scheduler(const Model& model, SchedulerLimits limits, PromisedMemory& memory,
                     Metrics& metrics)
    : model_(model), limits_(limits), memory_(memory), metrics_(metrics) {
  thread_ = std::thread([this] { run(); });
}

Scheduler::~Scheduler() { end_all(); }

void Scheduler::end_all() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Answer> Scheduler::ask(Question question) {
  const Context& context = *question.context->context;
  const AttentionShape& shape = context.shape();
  const auto asked = std::make_shared<const Question>(std::move(question));
  const auto answer = std::make_shared<Answer>(
      asked->choices, Usage{.context = context.tokens(), .prompt = std::ssize(asked->prompt)});
  const auto choices = static_cast<std::int64_t>(asked->choices);
  const std::lock_guard lock(mutex_);
  if (closed_) throw Problem(503, "the server is ending; ask another", {}, "shutting_down");
  if (waiting_ + choices > limits_.queue)
    throw Problem(
        429,
        fmt::format("{} answers wait, of {} at most; try again later", waiting_, limits_.queue), {},
        "queue_full");
  std::vector<std::unique_ptr<Seat>> seats;
  for (std::size_t i = 0; i < asked->choices; ++i) {
    auto seat = std::make_unique<Seat>();
    seat->question = asked;
    seat->answer = answer;
    seat->choice = i;
    seat->capacity = std::ssize(asked->prompt) + asked->options.max_tokens + 1;
    seat->row_bytes = shape.layers * shape.kv_heads * context.dtype().row_bytes(shape.head_dim);
    seats.push_back(std::move(seat));
  }
  // Nothing has changed where memory for any of it lacks: the thread never meets half a request.
  const auto take_place = [&](Lane& lane) {
    lane.waiting.insert(lane.waiting.end(), std::make_move_iterator(seats.begin()),
                        std::make_move_iterator(seats.end()));
  };
  const auto at = std::ranges::find(lanes_, asked->context, &Lane::context);
  if (at != lanes_.end()) {
    take_place(**at);
  } else {
    auto lane = std::make_unique<Lane>(model_, asked->context);
    take_place(*lane);
    lanes_.push_back(std::move(lane));
  }
  waiting_ += choices;
  metrics_.waiting = waiting_;
  changed_.notify_all();
  return answer;
}

void Scheduler::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

bool Scheduler::idle() const {
  const std::lock_guard lock(mutex_);
  return lanes_.empty();
}

void Scheduler::run() {
  std::vector<Lane*> lanes;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !lanes_.empty(); });
    if (ends_) break;
    lanes.clear();
    for (const auto& lane : lanes_) {
      admit(*lane);
      lanes.push_back(lane.get());
    }
    count();
    lock.unlock();
    for (Lane* lane : lanes) {
      drop_cancelled(*lane);
      start(*lane);
    }
    const Lane* const reads = next_to_read(lanes);
    for (Lane* lane : lanes) step(*lane, lane == reads);
    lock.lock();
    std::erase_if(lanes_, [](const auto& lane) {
      return lane->waiting.empty() && lane->admitted.empty() && lane->running.empty();
    });
    count();
  }
  const Problem ended(503, "the server ended before the answer was whole", {}, "shutting_down");
  for (const auto& lane : lanes_) {
    for (const auto* seats : {&lane->waiting, &lane->admitted})
      for (const auto& seat : *seats) seat->answer->fail(ended);
    for (const auto& seat : lane->running) {
      lane->batch.remove(seat->id);
      seat->answer->fail(ended);
    }
  }
  lanes_.clear();
  waiting_ = 0;
  count();
}

/// Lets those in that there is a place and memory for, in the order of the queue. Under the mutex.
void Scheduler::admit(Lane& lane) {
  std::erase_if(lane.waiting, [&](const std::unique_ptr<Seat>& seat) {
    if (!seat->answer->cancelled()) return false;
    --waiting_;
    return true;
  });
  while (!lane.waiting.empty() &&
         std::ssize(lane.running) + std::ssize(lane.admitted) < limits_.batch) {
    Seat& seat = *lane.waiting.front();
    const std::int64_t left = memory_.left();
    if (seat.bytes() > left) {
      if (running_) return;  // when those have ended, there may be
      const OutOfMemory error(
          fmt::format("host memory for the KV rows of {} tokens", seat.capacity), seat.bytes(),
          std::max<std::int64_t>(left, 0), "ask for fewer tokens");
      seat.answer->fail(Problem(503, error.what(), "max_tokens", "out_of_memory"));
      lane.waiting.pop_front();
      --waiting_;
      continue;
    }
    memory_.sessions += seat.bytes();
    running_ = true;
    lane.admitted.push_back(std::move(lane.waiting.front()));
    lane.waiting.pop_front();
    --waiting_;
  }
}

GenerateOptions Scheduler::options_of(Seat& seat) const {
  GenerateOptions options = seat.question->options;
  options.sampling.seed += seat.choice;
  if (options.logprobs < 0) return options;
  options.on_logprobs = [this, &seat](const TokenLogprobs& of) {
    const Tokenizer& tokenizer = model_.tokenizer();
    ToldToken& told = seat.logprobs.emplace_back();
    told.bytes = tokenizer.bytes_of_token(of.chosen.token);
    told.logprob = of.chosen.logprob;
    for (const TokenLogprob& other : of.top)
      told.top.push_back({tokenizer.bytes_of_token(other.token), other.logprob});
  };
  return options;
}

/// Gives sessions to those that were let in.
void Scheduler::start(Lane& lane) {
  for (; !lane.admitted.empty(); lane.admitted.pop_front()) {
    Seat& seat = *lane.admitted.front();
    if (seat.answer->cancelled()) continue;
    try {
      RetrievalOptions retrieval = lane.context->retrieval;
      retrieval.capacity = seat.capacity;
      retrieval.memory_budget = seat.bytes();  // which admit() has found to be there
      seat.session.emplace(lane.context->context, std::move(retrieval), model_.device());
      lane.running.reserve(lane.running.size() + 1);  // nothing fails behind add
      seat.since_start = Stopwatch();
      seat.id = lane.batch.add(
          *seat.session, seat.question->prompt, options_of(seat),
          [this, &seat](Token) {
            if (seat.tokens++ == 0) metrics_.count_first_token(seat.since_start.seconds());
            ++metrics_.generated_tokens;
            seat.answer->put({.choice = seat.choice}, 1);
            return !seat.answer->cancelled();
          },
          [&seat](std::string_view text) {
            seat.answer->put({.choice = seat.choice,
                              .text = std::string(text),
                              .logprobs = std::exchange(seat.logprobs, {})},
                             0);
            return true;
          });
      metrics_.prompt_tokens += std::ssize(seat.question->prompt);
      seat.answer->begin();
      lane.running.push_back(std::move(lane.admitted.front()));
    } catch (...) {
      seat.answer->fail(current_problem());
    }
  }
}

/// Takes out those that nobody waits for any more.
void Scheduler::drop_cancelled(Lane& lane) {
  std::erase_if(lane.running, [&](const std::unique_ptr<Seat>& seat) {
    if (!seat->answer->cancelled()) return false;
    lane.batch.remove(seat->id);
    return true;
  });
}

/// The lane whose prompt is read in this round: one of all lanes, so that a step of any lane waits
/// for one chunk and no more. Null: all prompts are read.
const Scheduler::Lane* Scheduler::next_to_read(const std::vector<Lane*>& lanes) {
  const Lane* next = nullptr;
  PromptTurn turn;
  for (const Lane* lane : lanes) {
    const std::optional<PromptTurn> of_lane = lane->batch.next_prompt();
    if (!of_lane || (next != nullptr && !of_lane->before(turn))) continue;
    next = lane;
    turn = *of_lane;
  }
  return next;
}

void Scheduler::step(Lane& lane, bool reads) {
  if (lane.running.empty()) return;
  const Stopwatch watch;
  const std::int64_t sessions = lane.batch.size() - lane.batch.reading();
  std::vector<GenerationBatch::Finished> finished;
  try {
    finished = lane.batch.step(reads);
  } catch (...) {  // which no answer is to blame for
    const Problem problem = current_problem();
    for (const auto& seat : lane.running) {
      lane.batch.remove(seat->id);
      seat->answer->fail(problem);
    }
    lane.running.clear();
    return;
  }
  if (reads || sessions > 0) metrics_.count_step(sessions, watch.seconds());
  for (const auto& seat : lane.running) seat->tell_reading();
  for (const GenerationBatch::Finished& one : finished) {
    const auto at =
        std::ranges::find(lane.running, one.id, [](const auto& seat) { return seat->id; });
    if (at == lane.running.end()) continue;
    Seat& seat = **at;
    try {
      if (one.error) std::rethrow_exception(one.error);
      seat.answer->put({.choice = seat.choice,
                        .logprobs = std::move(seat.logprobs),
                        .finish = one.result.finish == Finish::length ? "length" : "stop"},
                       0);
    } catch (...) {
      seat.answer->fail(current_problem());
    }
    lane.running.erase(at);
  }
}

/// What runs, for all who ask. Under the mutex, between rounds.
void Scheduler::count() {
  std::int64_t running = 0, promised = 0, bytes = 0;
  for (const auto& lane : lanes_) {
    for (const auto& seat : lane->admitted) promised += seat->promised();
    for (const auto& seat : lane->running) {
      promised += seat->promised();
      bytes += seat->bytes();
    }
    running += std::ssize(lane->running) + std::ssize(lane->admitted);
  }
  running_ = running > 0;
  memory_.sessions = promised;
  metrics_.running = running;
  metrics_.waiting = waiting_;
  metrics_.session_bytes = bytes;
}

}  // namespace topkv::serve
