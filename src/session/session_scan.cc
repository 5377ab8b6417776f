// The part of a step where the device scans codes, of the context and of the session's own rows:
// rows that it lists are attended here, by the host's threads.
#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <vector>

#include "index/common/scratch.h"
#include "src/attention/merge_parts.h"
#include "src/core/io/faults.h"
#include "src/core/threads/stopwatch.h"
#include "src/core/threads/threads.h"
#include "src/session/session_state.h"

namespace topkv {

/// Of a scan for a session's tokens from number `token` of its step on.
DecodeBackend::ScanOf Session::State::scan_of(const SessionStep& part, std::int64_t token,
                                              std::int64_t tokens, std::int64_t rows) {
  const std::int64_t layer = part.step.layer;
  allowed.clear();
  allowed_own.clear();
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::int64_t position = part.queries.first + token + i;
    const PositionRange range = between(segments[0], layer, position);
    for (std::int64_t head = 0; head < shape.kv_heads; ++head)
      allowed.push_back(wants_rows(part, head) ? range : PositionRange{});
    if (coded.tokens > 0)
      allowed_own.insert(allowed_own.end(), static_cast<std::size_t>(shape.kv_heads),
                         coded_rows(layer, position));
  }
  return {backend.get(),
          {.token = token,
           .allowed = allowed,
           .own = allowed_own,
           .rows = rows,
           .tail = step_spec.tail}};
}

/// Begins the scans of a step, before the queries are on the host: the device goes on while they
/// come.
void Session::State::scan(std::span<SessionStep> parts) {
  const Scratch<std::vector<DecodeBackend::ScanOf>> borrowed;
  std::vector<DecodeBackend::ScanOf>& scans = *borrowed;
  for (const SessionStep& first : parts) {
    const State& one = *first.session;
    if (!one.step_spec.codes || !first.searched || first.scanned > 0) continue;
    scans.clear();
    for (SessionStep& part : parts) {  // those that read the same
      const State& of = *part.session;
      if (!part.searched || !of.step_spec.codes || of.indices[0] != one.indices[0]) continue;
      part.scanned = std::min(part.step.tokens, part.session->tokens_at_once(part));
      part.wanted = part.session->first_rows(part.step.layer);
      scans.push_back(part.session->scan_of(part, 0, part.scanned, part.wanted));
    }
    first.session->backend->scan(first.step.layer, scans);
  }
}

/// A further scan of a step, for some of its tokens.
void Session::State::scan_and_attend(SessionStep part, std::int64_t token, std::int64_t tokens,
                                     std::int64_t rows) {
  {
    const auto lock = device.compute()->lock();
    const DecodeBackend::ScanOf scan = scan_of(part, token, tokens, rows);
    const Stopwatch scanning;  // a CUDA device only begins here
    backend->scan(part.step.layer, {&scan, 1});
    count_search(part.step.layer, scanning.seconds());
  }
  part.queries = part.queries.part(token, tokens);
  part.found = part.found.part(token * shape.q_heads, tokens * shape.q_heads);
  part.scanned = tokens;
  part.wanted = rows;
  attend_scanned({&part, 1}, [] {});
}

/// Whether its scan is to find rows for a KV head.
bool Session::State::wants_rows(const SessionStep& part, std::int64_t head) const {
  return !part.is_extra_round || heads[static_cast<std::size_t>(head)].count() > 0;
}

/// first(): what this thread does before.
void Session::State::attend_scanned(std::span<SessionStep> parts,
                                    const std::function<void()>& first) {
  reach_fault("session.attend");
  const ListTimes took = attend_lists(parts, parts[0].session->helpers, first);
  const auto sessions = static_cast<double>(parts.size());
  for (const SessionStep& part : parts) {
    if (part.scanned == 0) continue;
    State& of = *part.session;
    of.stats.rows_retrieved += of.rows_listed(part) * of.shape.group();
    of.count_search(part.step.layer, took.listed / sessions);
    of.times(part.step.layer).attend += (took.attended - took.listed) / sessions;
  }
}

/// Lists of a token and KV head that a scan gives: of the context, then of the session's own rows.
std::int64_t Session::State::scanned_lists() const {
  return backend->scan_lists() * (coded.tokens > 0 ? 2 : 1);
}

/// All of them: then those of own rows that are attended without a scan.
std::int64_t Session::State::lists_of(const SessionStep& part) const {
  return scanned_lists() + part.own_lists;
}

/// In which order lists are worked on, those of all tokens and KV heads: first what is known
/// without a scan (of steps of one token), so that this is done while the device still scans.
Session::State::RowList Session::State::list_of(const SessionStep& part, std::int64_t task) const {
  const std::int64_t scanned = scanned_lists();
  const std::int64_t known = shape.kv_heads * part.own_lists;
  if (task < known) {
    const std::int64_t number = task % part.own_lists;
    return {
        {.kv_head = task / part.own_lists, .number = number, .own = true}, false, scanned + number};
  }
  const std::int64_t head = (task - known) / scanned;  // of all tokens
  const std::int64_t place = (task - known) % scanned;
  const bool own = place >= backend->scan_lists();
  return {{.token = head / shape.kv_heads,
           .kv_head = head % shape.kv_heads,
           .number = own ? place - backend->scan_lists() : place,
           .own = own,
           .rows = part.wanted},
          true,
          place};
}

/// Has all heads of a group attend the rows that a scan lists for it, each list by one of the
/// helpers or this thread, which wait for them themselves. This thread does first() before; times
/// are without it.
Session::State::ListTimes Session::State::attend_lists(std::span<SessionStep> parts,
                                                       Helpers& helpers,
                                                       const std::function<void()>& first) {
  const Stopwatch watch;
  std::int64_t tasks = 0;  // lists
  for (SessionStep& part : parts) {
    part.first_list = tasks;
    if (part.scanned > 0) tasks += part.session->begin_lists(part);
  }
  if (tasks == 0) {
    first();
    return {};
  }
  if (!helpers.awake()) helpers.wake(std::min(thread_count(), tasks) - 1);
  std::atomic<std::int64_t> next = 0;
  std::atomic<double> listed = 0;  // seconds, about
  const auto work = [&] {
    const Scratch<ArrivingRows> rows;
    auto part = parts.begin();
    for (std::int64_t task = next++; task < tasks; task = next++) {
      while (part + 1 != parts.end() && (part + 1)->first_list <= task) ++part;
      State& of = *part->session;
      const RowList list = of.list_of(*part, task - part->first_list);
      of.drain_list(*part, list, *rows);
      if (double none = 0; listed == none && list.scanned && of.wants_rows(*part, list.kv_head))
        listed.compare_exchange_strong(none, watch.seconds());
      of.attend_list(*part, list, *rows);
    }
  };
  double begun = 0;  // seconds that first() took, which others count
  const auto begin = [&] {
    first();
    begun = watch.seconds();
  };
  helpers.run(begin, work);
  return {std::max(0.0, listed - begun), watch.seconds() - begun};
}

/// The number of lists of all its tokens.
std::int64_t Session::State::begin_lists(const SessionStep& part) {
  const std::int64_t heads_of_all = part.scanned * shape.kv_heads;
  const std::int64_t lists = heads_of_all * lists_of(part);
  // Not cleared in each step: each part is written before it is read.
  if (list_parts.view().heads < lists * shape.group())
    list_parts.reset(lists * shape.group(), shape.head_dim);
  done.reset(heads_of_all);
  heads_done = 0;
  if (part.is_extra_round) return lists;  // what is known of the others stays
  listed_rows.resize(static_cast<std::size_t>(options.measure_recall ? lists : 0));
  scanned_rows.assign(static_cast<std::size_t>(heads_of_all), part.wanted);
  list_rows.assign(static_cast<std::size_t>(lists), 0);
  return lists;
}

/// Scores what it holds as it becomes known.
void Session::State::drain_list(const SessionStep& part, const RowList& list, ArrivingRows& rows) {
  const std::int64_t group = shape.group();
  const TokenQueries& queries = part.queries;
  rows.begin(
      queries.data + list.token * queries.token_stride + list.kv_head * group * queries.head_stride,
      group, (list.own ? segments.back() : segments[0]).rows(part.step.layer, list.kv_head));
  if (!list.scanned) {
    const auto border = [&](std::int64_t i) {
      return part.own.begin + part.own.size() * i / part.own_lists;
    };
    for (std::int64_t row = border(list.number); row < border(list.number + 1); ++row)
      rows.add(row);
    return;
  }
  using enum DecodeBackend::Wait;
  backend->drain_list(
      list, part.async ? spin : poll_driver, [&](std::int32_t position) { rows.add(position); },
      [&] { return rows.score_some(); });
}

/// The last list of a head has all of them merged into part.found.
void Session::State::attend_list(const SessionStep& part, const RowList& list, ArrivingRows& rows) {
  const std::int64_t lists = lists_of(part);
  const std::int64_t group = shape.group();
  const std::int64_t number = list.token * shape.kv_heads + list.kv_head;
  const PartialView parts = list_parts.view();
  rows.attend(shape.softmax_scale(), shape.softcap,
              parts.part((number * lists + list.place) * group, group));
  const auto positions = rows.positions();
  if (wants_rows(part, list.kv_head)) {
    const auto at = static_cast<std::size_t>(
        (part.token_in_scan * shape.kv_heads + number) * lists + list.place);
    if (options.measure_recall) listed_rows[at].assign(positions.begin(), positions.end());
    if (!list.own) list_rows[at] = std::ssize(positions);
  }
  if (done.add(number) < lists) return;
  const PartialView found = part.found.part(number * group, group);
  if (part.async) std::fill_n(found.lse, group, empty_lse);
  merge_parts(found, parts.part(number * lists * group, lists * group));
  if (++heads_done == part.scanned * shape.kv_heads && part.async)
    backend->publish_partial(part.step_id);
}

/// By its scan.
std::int64_t Session::State::rows_listed(const SessionStep& part) const {
  const std::int64_t lists = lists_of(part);
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < part.scanned * shape.kv_heads; ++i) {
    if (!wants_rows(part, i % shape.kv_heads)) continue;
    const auto of_head = list_rows.begin() + (part.token_in_scan * shape.kv_heads + i) * lists;
    rows += std::accumulate(of_head, of_head + lists, std::int64_t{0});
  }
  return rows;
}

}  // namespace topkv
