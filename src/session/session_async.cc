#include "src/session/session_async.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <system_error>
#include <utility>

#include "src/core/io/faults.h"
#include "src/core/threads/cpu_relax.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

// Of a KV head: the session's own rows are spread over lists of so many, over so many lists at
// most.
constexpr std::int64_t own_list_rows = 256;
constexpr std::int64_t most_own_lists = 16;

}  // namespace

Session::State::AsyncStepper::AsyncStepper(State& of) : of_(of) {
  const AttentionShape& shape = of.shape;
  const std::int64_t lists = shape.kv_heads * (2 * of.backend->scan_lists() + most_own_lists);
  of.list_parts.reset(shape.group() * lists, shape.head_dim);
  of.list_rows.reserve(static_cast<std::size_t>(lists));
}

void Session::State::AsyncStepper::start() {
  if (thread_.joinable()) return;
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    throw Error(fmt::format("the thread for a session's steps could not start: {}", error.what()));
  }
}

Session::State::AsyncStepper::~AsyncStepper() {
  if (!thread_.joinable()) return;
  collect_all_but(0);
  given_ = no_more;
  given_.notify_one();
  thread_.join();
}

void Session::State::AsyncStepper::give(const SessionStep& part, std::int64_t threads) {
  Task& next = task(count_);
  next.part = part;
  next.threads = threads;
  next.error = nullptr;
  next.dropped = false;
  given_ = ++count_;
  given_.notify_one();
}

Session::State::Clock::time_point Session::State::AsyncStepper::collect_all_but(
    std::uint64_t last) {
  const std::lock_guard lock(collecting_);
  for (; collected_ + last < count_; ++collected_) {
    const auto is_done = [&] { return done_ > collected_; };
    wait_busily(is_done, pause, [&] {
      try {
        of_.backend->release_abandoned_waiters();
      } catch (const std::exception&) {  // the thread now throws, if it waits for the device
      }
    });
    const Task& of = task(collected_);
    last_done_ = of.done;
    // Its results are not numbers, and later steps may have taken them; not those of one that was
    // dropped, whose call has thrown.
    if (of.error && !of.dropped) {
      of_.failed = true;
      if (!error_) error_ = of.error;
    }
    if (of.error || of.dropped) continue;
    of_.stats.rows_retrieved += of.rows * of_.shape.group();
    of_.count_search(of.part.step.layer, of.times.listed);
    of_.stats.attend_seconds += of.times.attended - of.times.listed;
    StepTimes& times = of_.times(of.part.step.layer);
    times.attend += of.times.attended - of.times.listed;
  }
  return last_done_;
}

void Session::State::AsyncStepper::drop(const SessionStep& part) {
  if (count_ > collected_ && task(count_ - 1).part.step_id == part.step_id)
    task(count_ - 1).dropped = true;
}

std::exception_ptr Session::State::AsyncStepper::take_error() {
  const std::lock_guard lock(collecting_);
  return std::exchange(error_, nullptr);
}

void Session::State::AsyncStepper::work() {
  Helpers helpers;
  for (std::uint64_t number = 0;; ++number) {
    std::uint64_t given = given_;
    for (; given == number; given = given_) given_.wait(number);
    if (given == no_more) return;
    run(task(number), helpers);
    done_ = number + 1;
  }
}

void Session::State::AsyncStepper::run(Task& task, Helpers& helpers) noexcept {
  SessionStep& part = task.part;
  try {
    of_.backend->wait_for_scan(part.step_id);
    helpers.wake(task.threads - 1);  // they come while the device finds thresholds
    part.queries.data = of_.backend->wait_for_queries(part.step_id);
    task.times = attend_lists({&part, 1}, helpers, [] {});
    task.rows = of_.rows_listed(part);
  } catch (...) {
    helpers.release();
    task.error = std::current_exception();
    // The device is not to wait for ever, and nobody to take what it gives for attention.
    std::fill_n(part.found.out, part.found.heads * part.found.head_dim,
                std::numeric_limits<float>::quiet_NaN());
    std::fill_n(part.found.lse, part.found.heads, std::numeric_limits<float>::quiet_NaN());
    of_.backend->publish_partial(part.step_id);
  }
  task.done = Clock::now();
}

/// With one thread alone, the step's own thread does it all.
bool Session::State::can_step_async(const AttentionStep& step) const {
  return async_stepper && !meets_chunks(step) && step.tokens == 1 && !options.measure_recall &&
         thread_count() > 1 && searches(step.layer, position(step.layer) + 1);
}

/// The way of a step that goes ahead: the device is given its scan, rows join the session's when it
/// comes to that, which is when the step before is done, and it is given what follows the scan
/// while that goes on. Nothing is written to the caller's before the step is known to be good.
void Session::State::step_async(SessionStep& part) {
  const std::int64_t layer = part.step.layer;
  const Clock::time_point start = Clock::now();
  async_stepper->start();
  {
    const auto lock = device.compute()->lock();
    begin(part);
    scan({&part, 1});
    reach_fault("session.attend");
    part.async = true;
    part.step_id = backend->step_id();
    part.found = backend->host_partial_buffer();
    part.own = own_rows(layer, part.queries.first);
    part.own_lists =
        std::min((part.own.size() + own_list_rows - 1) / own_list_rows, most_own_lists);
    const std::int64_t lists = shape.kv_heads * lists_of(part);
    async_stepper->give(part, std::min(thread_count() - 1, lists));
    attend_exact(layer);
  }
  part.given = backend->wait_for_inputs();
  const Clock::time_point taken = Clock::now();
  const Clock::time_point before = async_stepper->collect_all_but(1);
  rethrow();
  part.stats_before = stats;
  part.times_before = times(layer);
  append(part);
  reach_fault("session.finish");
  {
    const auto lock = device.compute()->lock();
    backend->finish_async(part.step);
  }
  const double waited = std::chrono::duration<double>(taken - std::max(start, before)).count();
  times(layer).q_out += std::max(0.0, waited);
  stats.attend_seconds += std::max(0.0, waited);
  ++stats.steps;
}

void Session::State::settle() {
  if (!async_stepper) return;
  async_stepper->collect_all_but(0);
  rethrow();
}

/// What steps have met after their call had returned.
void Session::State::rethrow() {
  const std::exception_ptr met = async_stepper->take_error();
  if (!met) return;
  try {
    std::rethrow_exception(met);
  } catch (const std::exception& error) {
    throw Error(
        fmt::format("a step of this session failed after its call had returned, and gave NaN: {}",
                    error.what()));
  }
}

void Session::State::settle_without(const SessionStep& part) {
  if (!async_stepper) return;
  if (part.async) async_stepper->drop(part);
  async_stepper->collect_all_but(0);
}

}  // namespace topkv
