// The part of a step where the device scans the context's codes: rows that it lists are attended
// here, by the host's threads.
#include <algorithm>
#include <atomic>

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

/// Begins a scan of the context's codes for these tokens of a step, the first of which is number
/// `token` of it.
void Session::State::scan(std::int64_t layer, std::int64_t token, const TokenQueries& queries) {
  allowed.clear();
  for (std::int64_t i = 0; i < queries.tokens; ++i)
    allowed.push_back(between(segments[0], layer, queries.first + i));
  const DecodeBackend::ScanOf part{backend.get(),
                                   {.token = token,
                                    .allowed = allowed,
                                    .rows = k[static_cast<std::size_t>(layer)],
                                    .tail = seen.tail}};
  backend->scan(layer, {&part, 1});
}

/// That attend_listed has work for.
std::int64_t Session::State::helpers_for(std::int64_t tokens) const {
  return std::min(thread_count(), tokens * shape.kv_heads * backend->scan_lists()) - 1;
}

/// Has all heads of a group attend the rows that the scan lists for it, and merges that into `out`.
/// The threads wait for the lists themselves. beside: null: nothing else is left to do.
void Session::State::attend_listed(std::int64_t layer, const TokenQueries& queries,
                                   BesideScan* beside, PartialView out) {
  reach_fault("session.attend");
  const Stopwatch watch;
  const std::int64_t group = shape.group();
  const std::int64_t d = shape.head_dim;
  const std::int64_t lists = backend->scan_lists();
  const std::int64_t all = queries.tokens * shape.kv_heads;  // tokens and heads
  // Not cleared in each step: each part is written before it is read.
  if (list_parts.view().heads != all * lists * group) list_parts.reset(all * lists * group, d);
  const PartialView parts = list_parts.view();
  done.reset(all);
  listed_rows.resize(static_cast<std::size_t>(options.measure_recall ? all * lists : 0));
  std::atomic<std::int64_t> next = 0;
  std::atomic<double> searched = 0;  // seconds, about
  std::atomic<std::int64_t> rows = 0;

  const auto attend = [&](std::int64_t task, std::vector<std::int64_t>& positions) {
    const std::int64_t number = task / lists;  // of the token and head
    const std::int64_t token = number / shape.kv_heads;
    const std::int64_t head = number % shape.kv_heads;
    const RowsView head_rows = context->rows(layer, head);
    positions.clear();
    backend->read_list({token, head, task % lists}, [&](std::int32_t position) {
      prefetch_row(head_rows, position);  // which memory brings while the scan goes on
      // So is a short list sorted.
      auto at = positions.end();
      if (std::ssize(positions) < sorted_on_arrival)
        at = std::upper_bound(positions.begin(), positions.end(), position);
      positions.insert(at, position);
    });
    if (double none = 0; searched == none) searched.compare_exchange_strong(none, watch.seconds());
    if (std::ssize(positions) > sorted_on_arrival) std::sort(positions.begin(), positions.end());
    if (options.measure_recall) listed_rows[static_cast<std::size_t>(task)] = positions;
    const PartialView part = parts.part(task * group, group);
    attend_rows(queries.data + token * queries.token_stride + head * group * queries.head_stride,
                head_rows, positions, shape.softmax_scale(), part, shape.softcap);
    rows += std::ssize(positions);
    if (done.add(number) < lists) return;
    // The last list of a head: all of them, in their order.
    merge_parts(out.part(number * group, group), parts.part(number * lists * group, lists * group));
  };
  const auto begin = [&] {
    if (beside == nullptr) return;
    attend_exact(layer);
    beside->lock = {};
  };
  std::atomic<bool> appended = beside == nullptr;
  helpers.run(begin, [&] {
    if (!appended.exchange(true)) {
      const Stopwatch appending;
      append(layer, beside->given, 1);
      times(layer).append += appending.seconds();
    }
    const Scratch<std::vector<std::int64_t>> positions;
    for (std::int64_t task = next++; task < all * lists; task = next++) attend(task, *positions);
  });
  stats.rows_retrieved += rows * group;
  times(layer).search += searched;
  times(layer).attend += watch.seconds() - searched;
  stats.search_seconds += searched;
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
