#include "src/serve/run/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <iterator>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "src/core/threads/stopwatch.h"
#include "src/serve/run/seat.h"
#include "topkv/draft_model.h"
#include "topkv/error.h"
#include "topkv/generation.h"

namespace topkv::serve {

namespace {

/// Returns the bytes of one recurrent state of every layer that has one.
std::int64_t state_bytes_of(const AttentionShape& shape) {
  return std::accumulate(shape.state_size.begin(), shape.state_size.end(), std::int64_t{0}) *
         bytes_of(DType::f32);
}

}  // namespace

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
                     Metrics& metrics, TurnsFn on_turns)
    : model_(model),
      limits_(limits),
      memory_(memory),
      metrics_(metrics),
      on_turns_(std::move(on_turns)) {
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
  std::vector<Question> one;
  one.push_back(std::move(question));
  return ask(std::move(one));
}

std::shared_ptr<Answer> Scheduler::ask(std::vector<Question> questions) {
  const std::shared_ptr<const ServedContext> served = questions.front().context;
  const Context& context = *served->context;
  const AttentionShape& shape = context.shape();
  std::int64_t choices = 0, to_read = 0;
  Usage usage;
  for (const Question& question : questions) {
    choices += static_cast<std::int64_t>(question.choices);
    usage.context += context.tokens();
    usage.prompt += std::ssize(question.prompt);
    to_read += static_cast<std::int64_t>(question.choices) * std::ssize(question.prompt);
  }
  const auto answer = std::make_shared<Answer>(static_cast<std::size_t>(choices), usage, to_read);
  const std::lock_guard lock(mutex_);
  if (closed_)
    throw Problem(503, "the server is shutting down; ask another server", {}, "shutting_down");
  if (waiting_ + choices > limits_.queue)
    throw Problem(
        429,
        fmt::format("{} answers wait, of {} at most; try again later", waiting_, limits_.queue), {},
        "queue_full");
  std::vector<std::unique_ptr<Seat>> seats;
  for (Question& question : questions) {
    const auto asked = std::make_shared<const Question>(std::move(question));
    for (std::size_t i = 0; i < asked->choices; ++i) {
      auto seat = std::make_unique<Seat>();
      seat->question = asked;
      seat->answer = answer;
      seat->choice = seats.size();
      seat->draw = i;
      seat->capacity = std::ssize(asked->prompt) + asked->options.max_tokens + 1;
      seat->row_bytes = shape.bytes_per_token(context.dtype());
      seat->state_bytes = state_bytes_of(shape);
      if (const auto& drafts = asked->options.draft_model)
        seat->draft_bytes = drafts->session_bytes();
      else if (asked->options.draft != Draft::none)
        seat->draft_bytes = model_.draft_layer_bytes();
      seats.push_back(std::move(seat));
    }
  }
  // Nothing has changed where memory for any of it lacks: the thread never meets half a request.
  const auto take_place = [&](Lane& lane) {
    lane.waiting.insert(lane.waiting.end(), std::make_move_iterator(seats.begin()),
                        std::make_move_iterator(seats.end()));
  };
  const auto at = std::ranges::find(lanes_, served, &Lane::context);
  if (at != lanes_.end()) {
    take_place(**at);
  } else {
    auto lane = std::make_unique<Lane>(model_, served);
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
    memory_.kept.give_up_unserved();  // over contexts that these lanes were the last to have
    count();
  }
  const Problem ended(503, "the server ended before the answer was complete; ask again", {},
                      "shutting_down");
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
    if (find_room(lane, seat)) {
      memory_.sessions += seat.promised();
      running_ = true;
      lane.admitted.push_back(std::move(lane.waiting.front()));
    } else if (running_) {
      return;  // when those have ended, there may be memory
    } else {
      const OutOfMemory error(
          fmt::format("host memory for the KV rows of {} tokens{}", seat.capacity,
                      seat.state_bytes > 0 ? " and the recurrent states" : ""),
          seat.bytes(), std::max<std::int64_t>(memory_.left(), 0), "ask for fewer tokens");
      seat.answer->fail(Problem(503, error.what(), "max_tokens", "out_of_memory"));
    }
    lane.waiting.pop_front();
    --waiting_;
  }
}

/// Whether there is memory for the rows and the recurrent states that a seat may yet take. Kept
/// sessions give way, but for the one that the answer goes on from, which the seat is given.
bool Scheduler::find_room(Lane& lane, Seat& seat) {
  if (!memory_.can_make_room(seat.bytes())) return false;  // no session is given up in vain
  const std::vector<Token>& prompt = seat.question->prompt;
  const std::int64_t length = lane.context->context->tokens() + std::ssize(prompt);
  if (!seat.scores() && !length_matters(length)) {
    if (auto found = memory_.kept.take(lane.context, prompt, seat.capacity)) {
      seat.session = std::move(found->kept.session);
      seat.most_tokens = found->kept.most_tokens;
      seat.kept = found->common;
      if (memory_.make_room(seat.promised()) >= seat.promised()) return true;
      seat.forget_session();  // its rows are memory, too
    }
  }
  return memory_.make_room(seat.bytes()) >= seat.bytes();
}

/// Gives sessions to those that were let in.
void Scheduler::start(Lane& lane) {
  for (; !lane.admitted.empty(); lane.admitted.pop_front()) {
    Seat& seat = *lane.admitted.front();
    try {
      if (seat.answer->cancelled()) {
        if (seat.session) seat.session->truncate(seat.kept);
        if (seat.session) keep(lane, seat, {});
        continue;
      }
      while (true) {
        try {
          open(lane, seat);
          join(lane, seat);
          break;
        } catch (const OutOfMemory&) {  // of a device, which find_room() does not count
          if (!memory_.kept.give_up_oldest()) throw;
        }
      }
      lane.running.push_back(std::move(lane.admitted.front()));
    } catch (...) {
      seat.answer->fail(current_problem());
    }
  }
}

/// Makes a seat's session ready for what is left of its prompt.
void Scheduler::open(const Lane& lane, Seat& seat) {
  if (seat.session) return seat.session->truncate(seat.kept);
  const auto with_room_for = [&](std::int64_t capacity) {
    RetrievalOptions retrieval = lane.context->retrieval;
    retrieval.capacity = capacity;
    retrieval.memory_budget = capacity * seat.row_bytes;  // find_room() has found what it takes
    seat.session.emplace(lane.context->context, std::move(retrieval), model_.device());
  };
  if (memory_.kept.enabled() && limits_.room + 1 > seat.capacity) {
    try {
      return with_room_for(limits_.room + 1);
    } catch (const OutOfMemory&) {
      // Of address space for so many rows.
    }
  }
  with_room_for(seat.capacity);
}

void Scheduler::join(Lane& lane, Seat& seat) {
  const std::span<const Token> prompt = seat.question->prompt;
  lane.running.reserve(lane.running.size() + 1);  // nothing fails behind add
  seat.since_start = Stopwatch();
  seat.begin_echo(model_.tokenizer());
  seat.id = lane.batch.add(
      *seat.session, prompt.subspan(static_cast<std::size_t>(seat.kept)),
      seat.options(model_.tokenizer()),
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
  metrics_.prompt_tokens += std::ssize(prompt);
  metrics_.kept_tokens += seat.kept;
  if (seat.draw == 0) seat.answer->reuse(seat.kept - std::exchange(seat.reused, seat.kept));
  seat.answer->begin();
}

/// Whether what is computed of a token depends on the length of the text that it is read in, as
/// with dual chunk attention in long texts. Rows of one length are then none of another.
bool Scheduler::length_matters(std::int64_t tokens) const {
  const std::int64_t original = model_.config().dual_chunk.original_max_position;
  return original > 0 && tokens > original;
}

void Scheduler::tell_turns(const Seat& seat) const {
  const std::int64_t asked = std::ssize(seat.question->prompt) - seat.kept;
  if (on_turns_ && asked >= least_turn_tokens)
    on_turns_(seat.question->context->name, seat.session->turn_shares());
}

/// Keeps the session of an answer that is out of the batch, for prompts that go on from its text.
void Scheduler::keep(const Lane& lane, Seat& seat, std::span<const Token> answer) {
  try {
    Session& session = *seat.session;
    if (!memory_.kept.enabled() || session.own_tokens() == 0 || length_matters(session.tokens()))
      return;
    std::vector<Token> tokens = seat.question->prompt;
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    tokens.resize(static_cast<std::size_t>(session.own_tokens()));  // the last one is not fed
    const std::int64_t most = std::max(seat.most_tokens, session.own_tokens());
    memory_.kept.keep({.session = std::move(session),
                       .context = lane.context,
                       .tokens = std::move(tokens),
                       .most_tokens = most});
  } catch (const std::exception&) {
    // No memory to keep it in, or a device that no longer works: it ends with its seat.
  }
}

/// Puts an answer back, to begin anew, that found no memory while kept sessions had some, such as a
/// device's, which find_room() does not count. False: the answer has begun, or there are none.
bool Scheduler::begins_again(Lane& lane, std::unique_ptr<Seat>& seat,
                             const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const OutOfMemory&) {
    if (seat->tokens > 0 || !memory_.kept.give_up_oldest()) return false;
    seat->forget_session();
    lane.admitted.push_back(std::move(seat));
    return true;
  } catch (...) {
    return false;
  }
}

/// Takes out those that nobody waits for any more.
void Scheduler::drop_cancelled(Lane& lane) {
  std::erase_if(lane.running, [&](const std::unique_ptr<Seat>& seat) {
    if (!seat->answer->cancelled()) return false;
    keep(lane, *seat, lane.batch.remove(seat->id).tokens);
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
      if (!one.error) {
        if (seat.question->score_end && one.result.end_logprobs)
          seat.logprobs.push_back(told_token(model_.tokenizer(), *one.result.end_logprobs));
        tell_turns(seat);
        keep(lane, seat, one.result.tokens);  // before its client can go on
        seat.answer->put({.choice = seat.choice,
                          .logprobs = std::move(seat.logprobs),
                          .finish = one.result.finish == Finish::length ? "length" : "stop"},
                         0);
      } else if (!begins_again(lane, *at, one.error)) {
        std::rethrow_exception(one.error);
      }
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
      bytes += seat->capacity * seat->row_bytes;
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
