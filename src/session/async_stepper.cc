#include "src/session/async_stepper.h"

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

// A KV head's plain own rows are spread over lists of this number of rows, over this number of
// lists at most.
constexpr std::int64_t plain_list_rows = 256;
constexpr std::int64_t most_plain_lists = 16;

}  // namespace

AsyncStepper::AsyncStepper(SessionCore& session, ScanSource& scan, const OwnRowsSource& own)
    : session_(session), scan_(scan), own_(own) {
  scan_.lists().reserve(most_plain_lists);
}

void AsyncStepper::start() {
  if (thread_.joinable()) return;
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error& error) {
    throw Error(fmt::format("the thread for a session's steps could not start: {}", error.what()));
  }
}

AsyncStepper::~AsyncStepper() {
  if (!thread_.joinable()) return;
  collect_all_but(0);
  given_ = no_more;
  given_.notify_one();
  thread_.join();
}

/// Gives the thread a job whose scan has begun. threads: the number of threads that may work on it.
/// REQUIRES: at most one job that was given before is not collected.
void AsyncStepper::give(const ListJob& job, std::int64_t threads) {
  Task& next = task(count_);
  next.job = job;
  next.threads = threads;
  next.error = nullptr;
  next.dropped = false;
  given_ = ++count_;
  given_.notify_one();
}

/// Waits for all jobs except the last `last`, and adds their counts and times to the session's.
/// Returns when the last of them was done. Safe from many threads.
AsyncStepper::Clock::time_point AsyncStepper::collect_all_but(std::uint64_t last) {
  const std::lock_guard lock(collecting_);
  for (; collected_ + last < count_; ++collected_) {
    const auto is_done = [&] { return done_ > collected_; };
    wait_busily(is_done, pause, [&] {
      try {
        session_.backend.async->release_abandoned_waiters();
      } catch (const std::exception&) {  // the thread now throws, if it waits for the device
      }
    });
    const Task& of = task(collected_);
    last_done_ = of.done;
    // A failed step's results are not numbers, and later steps may have taken them. Nobody has
    // taken the results of a dropped step, whose call has thrown.
    if (of.error && !of.dropped) {
      session_.failed = true;
      if (!error_) error_ = of.error;
    }
    if (of.error || of.dropped) continue;
    session_.stats.rows_retrieved += of.rows * session_.shape.group();
    session_.count_search(of.job.layer, of.job.listed_seconds);
    const double attending = of.job.attended_seconds - of.job.listed_seconds;
    session_.stats.attend_seconds += attending;
    session_.times(of.job.layer).attend += attending;
  }
  return last_done_;
}

void AsyncStepper::work() {
  Helpers helpers;
  for (std::uint64_t number = 0;; ++number) {
    std::uint64_t given = given_;
    for (; given == number; given = given_) given_.wait(number);
    if (given == no_more) return;
    run(task(number), helpers);
    done_ = number + 1;
  }
}

void AsyncStepper::run(Task& task, Helpers& helpers) noexcept {
  ListJob& job = task.job;
  AsyncScan& device = *session_.backend.async;
  try {
    device.wait_for_scan(job.step_id);
    helpers.wake(task.threads - 1);  // they come while the device finds thresholds
    job.queries.data = device.wait_for_queries(job.step_id);
    ListJob* const one = &job;
    ListAttention::attend({&one, 1}, helpers, [] {});
    task.rows = job.lists->rows_listed(job);
  } catch (...) {
    helpers.release();
    task.error = std::current_exception();
    // The device must not wait for ever, and nobody may take its result for attention.
    std::fill_n(job.found.out, job.found.heads * job.found.head_dim,
                std::numeric_limits<float>::quiet_NaN());
    std::fill_n(job.found.lse, job.found.heads, std::numeric_limits<float>::quiet_NaN());
    device.publish_partial(job.step_id);
  }
  task.done = Clock::now();
}

bool AsyncStepper::can_step(const AttentionStep& step) const {
  // A layer without rows of its own may have fallen behind the rows on the device.
  const LayerStates& own = *session_.own;
  const std::int64_t given = own.tokens(session_.shape.row_layer_of(step.layer));
  return given <= own.tokens(step.layer) + 1 && step.tokens == 1 &&
         !session_.options.measure_recall && thread_count() > 1 &&
         session_.searches(step.layer, session_.position(step.layer) + 1);
}

void AsyncStepper::step(Step& step) {
  const std::int64_t layer = step.layer();
  const Clock::time_point start_time = Clock::now();
  start();
  std::int64_t lists = 0;  // that the host attends
  {
    const auto lock = session_.device.compute()->lock();
    step.passes = ChunkPasses(session_.shape, step.tensors, session_.position(layer));
    begin_step(step);
    step.device_attends =
        session_.backend.scanner->attends_found(layer, session_.schedule.first(layer));
    scan_.start({&step, 1});
    reach_fault("session.attend");
    step.async = true;
    step.step_id = session_.backend.async->step_id();
    ListJob job = scan_.job();
    job.found = session_.backend.inputs->host_partial_buffer();
    job.async = true;
    job.step_id = step.step_id;
    job.plain = own_.plain_rows(layer, step.queries.first);
    job.plain_lists =
        std::min((job.plain.size() + plain_list_rows - 1) / plain_list_rows, most_plain_lists);
    lists = session_.shape.kv_heads * scan_.lists().lists_of(job);
    if (lists > 0) give(job, std::min(thread_count() - 1, lists));
    step.window->contribute(step);
  }
  const AttentionStep given = session_.backend.inputs->wait_for_inputs();
  const Clock::time_point taken = Clock::now();
  const Clock::time_point last_done = collect_all_but(lists > 0 ? 1 : 0);
  rethrow();
  step.stats_before = session_.stats;
  step.times_before = session_.times(layer);
  append_rows(step, given);
  reach_fault("session.finish");
  {
    const auto lock = session_.device.compute()->lock();
    session_.backend.async->finish_async(step.tensors, lists > 0);
  }
  const double waited =
      std::max(0.0, std::chrono::duration<double>(taken - std::max(start_time, last_done)).count());
  session_.times(layer).q_out += waited;
  session_.stats.attend_seconds += waited;
  session_.count_steps(layer, 1);
}

void AsyncStepper::settle() {
  collect_all_but(0);
  rethrow();
}

/// Throws the first failure of the steps that were collected, once.
void AsyncStepper::rethrow() {
  const std::exception_ptr met = [&] {
    const std::lock_guard lock(collecting_);
    return std::exchange(error_, nullptr);
  }();
  if (!met) return;
  try {
    std::rethrow_exception(met);
  } catch (const std::exception& error) {
    throw Error(
        fmt::format("a step of this session failed after its call had returned, and gave NaN: {}",
                    error.what()));
  }
}

void AsyncStepper::settle_without(const Step& step) {
  if (step.async && count_ > collected_ && task(count_ - 1).job.step_id == step.step_id)
    task(count_ - 1).dropped = true;
  collect_all_but(0);
}

}  // namespace topkv
