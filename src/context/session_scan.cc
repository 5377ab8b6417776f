// The part of a step where the device scans the context's codes: rows that it lists are attended
// here, by the host's threads.
#include <algorithm>
#include <atomic>
#include <functional>
#include <vector>

#include "index/scratch.h"
#include "src/attention/merge_parts.h"
#include "src/attention/prefetch_rows.h"
#include "src/context/session_state.h"
#include "src/core/faults.h"
#include "src/core/stopwatch.h"
#include "src/core/threads.h"

namespace topkv {
namespace {

constexpr std::int64_t sorted_on_arrival = 128;  // positions of a list

}  // namespace

/// Of a scan for a session's tokens from number `token` of its step on.
DecodeBackend::ScanOf Session::State::scan_of(const Part& part, std::int64_t token,
                                              std::int64_t tokens) {
  const std::int64_t layer = part.step.layer;
  allowed.clear();
  for (std::int64_t i = 0; i < tokens; ++i)
    allowed.push_back(between(segments[0], layer, part.queries.first + token + i));
  return {backend.get(),
          {.token = token,
           .allowed = allowed,
           .rows = k[static_cast<std::size_t>(layer)],
           .tail = seen.tail}};
}

/// Begins the scans of a step, before the queries are on the host: the device goes on while they
/// come.
void Session::State::scan(std::span<Part> parts) {
  const Scratch<std::vector<DecodeBackend::ScanOf>> borrowed;
  std::vector<DecodeBackend::ScanOf>& scans = *borrowed;
  for (const Part& first : parts) {
    const State& one = *first.session;
    if (!one.seen.codes || !first.searched || first.scanned > 0) continue;
    scans.clear();
    for (Part& part : parts) {  // those that read the same
      const State& of = *part.session;
      if (!part.searched || !of.seen.codes || of.indices[0] != one.indices[0]) continue;
      part.scanned = std::min(part.step.tokens, part.session->backend->scan_tokens());
      scans.push_back(part.session->scan_of(part, 0, part.scanned));
    }
    first.session->backend->scan(first.step.layer, scans);
  }
}

/// A scan for further tokens of a step.
void Session::State::scan_and_attend(const Part& part, std::int64_t token, std::int64_t tokens) {
  Part further = part;
  further.queries = part.queries.part(token, tokens);
  further.found = part.found.part(token * shape.q_heads, tokens * shape.q_heads);
  further.scanned = tokens;
  {
    const auto lock = device.compute()->lock();
    const DecodeBackend::ScanOf scan = scan_of(part, token, tokens);
    backend->scan(part.step.layer, {&scan, 1});
  }
  attend_lists(
      {&further, 1}, [] {}, [] {});
}

/// Threads that attend_lists has work for, with so many lists.
void Session::State::wake_for(std::int64_t lists) {
  helpers.wake(std::min(thread_count(), lists) - 1);
}

/// Of a list by its number among those of all tokens and KV heads.
DecodeBackend::List Session::State::place_of(std::int64_t list) const {
  const std::int64_t lists = backend->scan_lists();
  return {list / lists / shape.kv_heads, list / lists % shape.kv_heads, list % lists};
}

/// Has all heads of a group attend the rows that a scan lists for it. The threads wait for the
/// lists themselves. What else is left to do: this thread does first() before, any does beside().
void Session::State::attend_lists(std::span<Part> parts, const std::function<void()>& first,
                                  const std::function<void()>& beside) {
  reach_fault("session.attend");
  const Stopwatch watch;
  State& one = *parts[0].session;
  std::int64_t tasks = 0;  // lists
  for (Part& part : parts) {
    part.first_list = tasks;
    if (part.scanned == 0) continue;
    tasks += part.session->begin_lists(part.scanned);
  }
  if (tasks == 0) {
    first();
    beside();
    return;
  }
  if (!one.helpers.awake()) one.wake_for(tasks);
  std::atomic<std::int64_t> next = 0;
  std::atomic<double> searched = 0;  // seconds, about
  std::atomic<bool> is_done = false;
  const auto work = [&] {
    if (!is_done.exchange(true)) beside();
    const Scratch<std::vector<std::int64_t>> positions;
    auto part = parts.begin();
    for (std::int64_t task = next++; task < tasks; task = next++) {
      while (part + 1 != parts.end() && (part + 1)->first_list <= task) ++part;
      State& of = *part->session;
      of.read_list(*part, task - part->first_list, *positions);
      if (double none = 0; searched == none)
        searched.compare_exchange_strong(none, watch.seconds());
      of.attend_list(*part, task - part->first_list, *positions);
    }
  };
  double begun = 0;  // seconds that first() took, which others count
  const auto begin = [&] {
    first();
    begun = watch.seconds();
  };
  one.helpers.run(begin, work);
  const auto sessions = static_cast<double>(parts.size());
  for (const Part& part : parts) {
    if (part.scanned > 0)
      part.session->end_lists(part.step.layer, std::max(0.0, searched - begun) / sessions,
                              (watch.seconds() - begun) / sessions);
  }
}

/// The number of lists for so many tokens.
std::int64_t Session::State::begin_lists(std::int64_t tokens) {
  const std::int64_t heads_of_all = tokens * shape.kv_heads;
  const std::int64_t lists = heads_of_all * backend->scan_lists();
  // Not cleared in each step: each part is written before it is read.
  if (list_parts.view().heads != lists * shape.group())
    list_parts.reset(lists * shape.group(), shape.head_dim);
  done.reset(heads_of_all);
  listed_rows.resize(static_cast<std::size_t>(options.measure_recall ? lists : 0));
  rows_listed = 0;
  return lists;
}

void Session::State::end_lists(std::int64_t layer, double searched, double whole_time) {
  stats.rows_retrieved += rows_listed * shape.group();
  times(layer).search += searched;
  times(layer).attend += whole_time - searched;
  stats.search_seconds += searched;
}

/// list: its number. positions: what it holds, ascending.
void Session::State::read_list(const Part& part, std::int64_t list,
                               std::vector<std::int64_t>& positions) {
  const DecodeBackend::List place = place_of(list);
  const RowsView rows = segments[0].rows(part.step.layer, place.kv_head);
  positions.clear();
  backend->read_list(place, [&](std::int32_t position) {
    prefetch_row(rows, position);  // which memory brings while the scan goes on
    // So is a short list sorted.
    auto at = positions.end();
    if (std::ssize(positions) < sorted_on_arrival)
      at = std::upper_bound(positions.begin(), positions.end(), position);
    positions.insert(at, position);
  });
  if (std::ssize(positions) > sorted_on_arrival) std::sort(positions.begin(), positions.end());
  if (options.measure_recall) listed_rows[static_cast<std::size_t>(list)] = positions;
}

/// The last list of a head has all of them merged into part.found.
void Session::State::attend_list(const Part& part, std::int64_t list,
                                 const std::vector<std::int64_t>& positions) {
  const DecodeBackend::List place = place_of(list);
  const std::int64_t lists = backend->scan_lists();
  const std::int64_t group = shape.group();
  const TokenQueries& queries = part.queries;
  const PartialView parts = list_parts.view();
  attend_rows(queries.data + place.token * queries.token_stride +
                  place.kv_head * group * queries.head_stride,
              segments[0].rows(part.step.layer, place.kv_head), positions, shape.softmax_scale(),
              parts.part(list * group, group), shape.softcap);
  rows_listed += std::ssize(positions);
  const std::int64_t number = list / lists;  // of the token and head
  if (done.add(number) < lists) return;
  merge_parts(part.found.part(number * group, group),
              parts.part(number * lists * group, lists * group));
}

/// Of the session's own rows, those that some tokens of the block have in their window and others
/// do not.
void Session::State::attend_between(std::int64_t layer, const TokenQueries& queries,
                                    PartialView out) {
  if (queries.tokens == 1) return;
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    copy_queries(layer, head, queries);
    Selector& selector = heads[static_cast<std::size_t>(head)].selector;
    selector.reset(queries.tokens * shape.group());
    take_own(layer, head, queries);
  }
  attend_found(layer, queries, out);
}

}  // namespace topkv
