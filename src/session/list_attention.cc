#include "src/session/list_attention.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "index/common/scratch.h"
#include "src/attention/merge_parts.h"
#include "src/core/threads/stopwatch.h"
#include "src/core/threads/threads.h"

namespace topkv {

void ListAttention::attend(std::span<ListJob* const> jobs, Helpers& helpers,
                           const std::function<void()>& first) {
  const Stopwatch watch;
  std::int64_t tasks = 0;  // lists
  for (ListJob* job : jobs) {
    job->first_list = tasks;
    job->listed_seconds = job->attended_seconds = 0;
    tasks += job->lists->begin(*job);
  }
  if (tasks == 0) return first();
  if (!helpers.awake()) helpers.wake(std::min(thread_count(), tasks) - 1);
  std::atomic<std::int64_t> next = 0;
  std::atomic<double> listed = 0;  // seconds, about
  const auto work = [&] {
    const Scratch<ArrivingRows> rows;
    auto of = jobs.begin();
    for (std::int64_t task = next++; task < tasks; task = next++) {
      while (of + 1 != jobs.end() && of[1]->first_list <= task) ++of;
      const ListJob& job = **of;
      ListAttention& lists = *job.lists;
      const List list = lists.list_of(job, task - job.first_list);
      lists.drain(job, list, *rows);
      if (double none = 0; listed == none && lists.place(job, list) < lists.scanned_lists(job) &&
                           lists.wants_rows(job, list.kv_head)) {
        listed.compare_exchange_strong(none, watch.seconds());
      }
      lists.attend(job, list, *rows);
    }
  };
  double begun = 0;  // seconds that first() took, which others count
  const auto begin = [&] {
    first();
    begun = watch.seconds();
  };
  helpers.run(begin, work);
  const double attended = watch.seconds() - begun;
  for (ListJob* job : jobs) {
    job->listed_seconds = std::max(0.0, listed - begun);
    job->attended_seconds = attended;
  }
}

void ListAttention::reserve(std::int64_t plain_lists) {
  const AttentionShape& shape = session_.shape;
  const std::int64_t lists = shape.kv_heads * (2 * session_.backend.scanner->lists() + plain_lists);
  parts_.reset(shape.group() * lists, shape.head_dim);
  list_rows_.reserve(static_cast<std::size_t>(lists));
}

/// The lists of the context that a scan has, of one token and KV head.
std::int64_t ListAttention::context_lists(const ListJob& job) const {
  return job.device_attends ? 0 : session_.backend.scanner->lists();
}

/// Lists of the context, then lists of the session's own rows.
std::int64_t ListAttention::scanned_lists(const ListJob& job) const {
  return context_lists(job) + (own_.tokens() > 0 ? session_.backend.scanner->lists() : 0);
}

/// Returns the number of lists of all its tokens.
std::int64_t ListAttention::begin(const ListJob& job) {
  const AttentionShape& shape = session_.shape;
  const std::int64_t heads_of_all = job.tokens * shape.kv_heads;
  const std::int64_t lists = heads_of_all * lists_of(job);
  // Not cleared in each step: each part is written before it is read.
  if (parts_.view().heads < lists * shape.group())
    parts_.reset(lists * shape.group(), shape.head_dim);
  done_.assign(static_cast<std::size_t>(heads_of_all), 0);
  heads_done_ = 0;
  if (job.is_extra_round) return lists;  // the figures of the other tokens stay
  listed_.resize(static_cast<std::size_t>(keeps_listed() ? lists : 0));
  rows_wanted_.assign(static_cast<std::size_t>(heads_of_all), job.wanted);
  list_rows_.assign(static_cast<std::size_t>(lists), 0);
  return lists;
}

/// The order in which lists of all tokens and KV heads are worked on. Lists that are known without
/// a scan come first, so that they are attended while the device still scans.
ListAttention::List ListAttention::list_of(const ListJob& job, std::int64_t task) const {
  const std::int64_t kv_heads = session_.shape.kv_heads;
  const std::int64_t of_context = context_lists(job);
  const std::int64_t scanned = scanned_lists(job);
  const std::int64_t known = kv_heads * job.plain_lists;
  if (task < known) {
    return {.kv_head = task / job.plain_lists,
            .number = scanned - of_context + task % job.plain_lists,
            .own = true};
  }
  const std::int64_t head = (task - known) / scanned;  // of all tokens
  const std::int64_t place = (task - known) % scanned;
  const bool own = place >= of_context;
  return {.token = head / kv_heads,
          .kv_head = head % kv_heads,
          .number = own ? place - of_context : place,
          .own = own,
          .rows = job.wanted};
}

/// Returns a list's number among all lists of its token and KV head.
std::int64_t ListAttention::place(const ListJob& job, const List& list) const {
  return list.own ? context_lists(job) + list.number : list.number;
}

/// Scores the rows of a list as they become known.
void ListAttention::drain(const ListJob& job, const List& list, ArrivingRows& rows) {
  const std::int64_t group = session_.shape.group();
  const Segment& segment = list.own ? session_.segments.back() : session_.segments[0];
  std::array<ArrivingRows::Queries, query_forms> queries;
  const auto passes = static_cast<std::size_t>(job.passes.size());
  for (std::size_t i = 0; i < passes; ++i) {
    const PositionRange& sees = job.passes[static_cast<std::int64_t>(i)].sees;
    queries[i] = {
        job.queries.query(list.token + static_cast<std::int64_t>(i), list.kv_head * group),
        {sees.begin - segment.first, sees.end - segment.first}};
  }
  rows.begin(std::span(queries).first(passes), group, segment.rows(job.layer, list.kv_head));
  if (const std::int64_t number = place(job, list) - scanned_lists(job); number >= 0) {
    const auto border = [&](std::int64_t i) {
      return job.plain.begin + job.plain.size() * i / job.plain_lists;
    };
    for (std::int64_t row = border(number); row < border(number + 1); ++row) rows.add(row);
    return;
  }
  using enum CodeScanner::Wait;
  session_.backend.scanner->drain_list(list, job.async ? spin : poll_driver, rows);
}

/// The last list of a head has all of them merged into job.found.
void ListAttention::attend(const ListJob& job, const List& list, ArrivingRows& rows) {
  const AttentionShape& shape = session_.shape;
  const std::int64_t lists = lists_of(job);
  const std::int64_t group = shape.group();
  const std::int64_t number = list.token * shape.kv_heads + list.kv_head;
  const PartialView parts = parts_.view();
  rows.attend(shape.softmax_scale(), shape.softcap,
              parts.part((number * lists + place(job, list)) * group, group));
  const auto positions = rows.positions();
  if (wants_rows(job, list.kv_head)) {
    const auto at = static_cast<std::size_t>((job.token_in_scan * shape.kv_heads + number) * lists +
                                             place(job, list));
    if (keeps_listed()) listed_[at].assign(positions.begin(), positions.end());
    if (!list.own) list_rows_[at] = std::ssize(positions);
  }
  if (++std::atomic_ref(done_[static_cast<std::size_t>(number)]) < lists) return;
  const PartialView found = job.found.part(number * group, group);
  if (job.async) std::fill_n(found.lse, group, empty_lse);
  merge_parts(found, parts.part(number * lists * group, lists * group));
  if (++heads_done_ == job.tokens * shape.kv_heads && job.async)
    session_.backend.async->publish_partial(job.step_id);
}

std::int64_t ListAttention::rows_listed(const ListJob& job) const {
  const std::int64_t kv_heads = session_.shape.kv_heads;
  const std::int64_t lists = lists_of(job);
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < job.tokens * kv_heads; ++i) {
    if (!wants_rows(job, i % kv_heads)) continue;
    const auto of_head = list_rows_.begin() + (job.token_in_scan * kv_heads + i) * lists;
    rows += std::accumulate(of_head, of_head + lists, std::int64_t{0});
  }
  return rows;
}

std::int64_t ListAttention::rows_listed(std::int64_t token, std::int64_t head) const {
  const std::int64_t lists = scanned_lists({});
  const auto of_head = list_rows_.begin() + (token * session_.shape.kv_heads + head) * lists;
  return std::accumulate(of_head, of_head + lists, std::int64_t{0});
}

void ListAttention::add_listed(std::int64_t token, std::int64_t head, bool own,
                               std::vector<std::int64_t>& positions) const {
  const std::int64_t lists = session_.backend.scanner->lists();
  std::int64_t first = (token * session_.shape.kv_heads + head) * scanned_lists({});
  if (own) first += context_lists({});
  for (std::int64_t at = first; at < first + lists; ++at) {
    const auto& listed = listed_[static_cast<std::size_t>(at)];
    positions.insert(positions.end(), listed.begin(), listed.end());
  }
}

}  // namespace topkv
