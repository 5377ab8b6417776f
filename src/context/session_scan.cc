// The part of a step where the device scans the context's codes: rows that it lists are attended
// here, by the host's threads.
#include <algorithm>
#include <atomic>

#include "index/scratch.h"
#include "src/attention/merge_parts.h"
#include "src/context/session_state.h"
#include "src/core/faults.h"
#include "src/core/stopwatch.h"
#include "src/core/threads.h"

namespace topkv {
namespace {

// A list is attended in pieces, by its length alone: results do not depend on the threads.
constexpr std::int64_t most_pieces = 8;
constexpr std::int64_t least_piece = 8;  // rows

}  // namespace

/// Begins a scan of the context's codes for these tokens of a step, the first of which is number
/// `token` of it.
void Session::State::scan(std::int64_t layer, std::int64_t token, const TokenQueries& queries) {
  const CausalWindow exact = seen.exact(layer);
  allowed.clear();
  for (std::int64_t i = 0; i < queries.tokens; ++i) {
    const std::int64_t end = std::min(exact.begin(queries.first + i), context->tokens());
    allowed.push_back(
        {std::min(exact.sinks, std::max<std::int64_t>(end, 0)), std::max<std::int64_t>(end, 0)});
  }
  backend->scan(layer, {.token = token,
                        .allowed = allowed,
                        .rows = k[static_cast<std::size_t>(layer)],
                        .tail = options.tail != no_tail});
}

/// Has all heads of a group attend the rows that the scan lists for it, and merges that into `out`.
/// The threads wake up while the device scans, and wait for its lists themselves.
void Session::State::attend_listed(std::int64_t layer, const TokenQueries& queries,
                                   PartialView out) {
  reach_fault("session.attend");
  const Stopwatch watch;
  const std::int64_t group = shape.group();
  const std::int64_t d = shape.head_dim;
  const std::int64_t lists = queries.tokens * shape.kv_heads;
  // Not cleared in each step: each part is written before it is read.
  const std::int64_t part_heads = lists * most_pieces * group;
  if (piece_parts.view().heads != part_heads) piece_parts.reset(part_heads, d);
  const PartialView parts = piece_parts.view();
  const auto list = [&](std::int64_t i) {
    return backend->listed(i / shape.kv_heads, i % shape.kv_heads);
  };
  const auto part = [&](std::int64_t i, std::int64_t piece) {
    const std::int64_t at = (i * most_pieces + piece) * group;
    return PartialView{parts.out + at * d, parts.lse + at, group, d};
  };
  std::atomic<std::int64_t> next = 0;  // piece of all lists together
  done.reset(lists);
  std::atomic<double> searched = 0;  // seconds, about
  const auto attend = [&] {
    const Scratch<std::vector<std::int64_t>> positions;
    std::int64_t first = 0;  // piece of list i
    std::int64_t mine = next++;
    for (std::int64_t i = 0; i < lists; ++i) {
      const auto listed = list(i);
      if (double none = 0; i == 0) searched.compare_exchange_strong(none, watch.seconds());
      const std::int64_t rows =
          std::max(least_piece, (std::ssize(listed) + most_pieces - 1) / most_pieces);
      const std::int64_t count = (std::ssize(listed) + rows - 1) / rows;
      for (; mine < first + count; mine = next++) {
        const std::int64_t piece = mine - first;
        const auto some = listed.subspan(
            static_cast<std::size_t>(piece * rows),
            static_cast<std::size_t>(std::min(rows, std::ssize(listed) - piece * rows)));
        positions->assign(some.begin(), some.end());
        const float* q = queries.data + i / shape.kv_heads * queries.token_stride +
                         i % shape.kv_heads * group * queries.head_stride;
        const RowsView all = context->rows(layer, i % shape.kv_heads);
        attend_rows(q, all, *positions, shape.softmax_scale(), part(i, piece), shape.softcap);
        if (done.add(i) < count) continue;
        // The last piece of a list: all of them, in their order.
        const std::int64_t at = i / shape.kv_heads * shape.q_heads + i % shape.kv_heads * group;
        merge_parts({out.out + at * d, out.lse + at, group, d},
                    {part(i, 0).out, part(i, 0).lse, count * group, d});
      }
      first += count;
    }
  };
  parallel_for(std::min(thread_count(), lists * most_pieces), 1,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) attend();
               });
  for (std::int64_t i = 0; i < lists; ++i) stats.rows_retrieved += std::ssize(list(i)) * group;
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
