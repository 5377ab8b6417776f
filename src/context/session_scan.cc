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

// A list is attended in pieces, by its length alone: results do not depend on the threads.
constexpr std::int64_t most_pieces = 6;  // those of a short list have no rows
constexpr std::int64_t least_piece = 8;  // rows
constexpr std::size_t ahead = 64;        // rows of a piece that are asked for before it is attended

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
                        .tail = seen.tail});
}

/// That attend_listed has work for.
std::int64_t Session::State::helpers_for(std::int64_t tokens) const {
  return std::min(thread_count(), tokens * shape.kv_heads * most_pieces) - 1;
}

/// Has all heads of a group attend the rows that the scan lists for it, and merges that into `out`.
/// The threads wait for the lists themselves. exact_is_due: this one has the device begin with what
/// is attended exactly, which may come after the scan.
void Session::State::attend_listed(std::int64_t layer, const TokenQueries& queries,
                                   Helpers& helpers, bool exact_is_due, PartialView out) {
  reach_fault("session.attend");
  const Stopwatch watch;
  const std::int64_t group = shape.group();
  const std::int64_t d = shape.head_dim;
  const std::int64_t lists = queries.tokens * shape.kv_heads;
  // Not cleared in each step: each part is written before it is read.
  const std::int64_t part_heads = lists * most_pieces * group;
  if (piece_parts.view().heads != part_heads) piece_parts.reset(part_heads, d);
  const PartialView parts = piece_parts.view();
  const auto part = [&](std::int64_t list, std::int64_t piece) {
    return parts.part((list * most_pieces + piece) * group, group);
  };
  done.reset(lists);
  std::atomic<std::int64_t> next = 0;
  std::atomic<double> searched = 0;  // seconds, about
  std::atomic<std::int64_t> rows = 0;

  struct Piece {
    std::int64_t list = 0;
    std::int64_t number = 0;  // of the list's
    std::int64_t pieces = 0;  // of the list
    std::vector<std::int64_t> positions;
  };
  // Waits for the rows of the next piece, and has them on their way. False: there is none.
  const auto take = [&](Piece& to) {
    const std::int64_t task = next++;
    if (task >= lists * most_pieces) return false;
    to.list = task / most_pieces;
    to.number = task % most_pieces;
    const std::int64_t token = to.list / shape.kv_heads;
    const std::int64_t head = to.list % shape.kv_heads;
    const std::int64_t listed = backend->listed(token, head);
    if (double none = 0; task == 0) searched.compare_exchange_strong(none, watch.seconds());
    const std::int64_t size = std::max(least_piece, (listed + most_pieces - 1) / most_pieces);
    to.pieces = (listed + size - 1) / size;
    const std::int64_t first = std::min(to.number * size, listed);
    const auto some = backend->listed(token, head, first, std::min(size, listed - first));
    to.positions.assign(some.begin(), some.end());
    prefetch_rows(context->rows(layer, head),
                  std::span(to.positions).first(std::min<std::size_t>(ahead, to.positions.size())));
    return true;
  };
  const auto attend = [&](const Piece& piece) {
    const std::int64_t token = piece.list / shape.kv_heads;
    const std::int64_t head = piece.list % shape.kv_heads;
    if (!piece.positions.empty()) {
      attend_rows(queries.data + token * queries.token_stride + head * group * queries.head_stride,
                  context->rows(layer, head), piece.positions, shape.softmax_scale(),
                  part(piece.list, piece.number), shape.softcap);
      rows += std::ssize(piece.positions);
    }
    if (done.add(piece.list) < most_pieces || piece.pieces == 0) return;
    // The last piece of a list: all of them, in their order.
    merge_parts(out.part(token * shape.q_heads + head * group, group),
                parts.part(piece.list * most_pieces * group, piece.pieces * group));
  };
  const auto begin = [&] {
    if (!exact_is_due) return;
    const auto lock = device.compute()->lock();
    attend_exact(layer);
  };
  helpers.run(begin, [&] {
    const Scratch<Piece> a, b;
    Piece* now = &*a;
    Piece* then = &*b;
    // While one piece is attended, the rows of another come from memory.
    for (bool more = take(*now); more; std::swap(now, then)) {
      more = take(*then);
      attend(*now);
    }
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
