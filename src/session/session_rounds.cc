// The rules of RetrievalOptions that say how many rows are enough: a step's queries attend some of
// the best rows first, and what the tail then says of its share and its error tells which of them
// are to attend more. Each query goes its own way (those of a group that shares its rows, or that a
// method chooses for, go together), so that steps of many tokens give what steps of one would; but
// questions that a method chooses for as a whole (squeezed) go on as a whole.
#include <algorithm>
#include <limits>
#include <numeric>

#include "index/common/index_factory.h"
#include "src/core/threads/stopwatch.h"
#include "src/core/threads/threads.h"
#include "src/session/session_state.h"

namespace topkv {
namespace {

// Rows of a round, by those of the one before: a round costs a search and a pass of the tail, which
// take about as long for many rows as for few.
constexpr std::int64_t times_more = 16;
// Of a context: above this part of it, attending all rows takes less than finding some.
constexpr std::int64_t most_part = 16;

void empty(PartialView part) {
  std::fill_n(part.out, part.heads * part.head_dim, 0.0F);
  std::fill_n(part.lse, part.heads, empty_lse);
}

/// Moves the values of these queries to the front; width: of a query.
template <class T>
void keep(const std::vector<std::int64_t>& queries, std::int64_t width, std::vector<T>& values) {
  for (std::size_t to = 0; to < queries.size(); ++to) {
    const auto at = static_cast<std::int64_t>(to);
    if (queries[to] == at) continue;
    std::copy_n(values.begin() + queries[to] * width, width, values.begin() + at * width);
  }
  values.resize(queries.size() * static_cast<std::size_t>(width));
}

}  // namespace

/// Rows that each query attends first.
std::int64_t Session::State::first_rows(std::int64_t layer) const {
  const std::int64_t rows = k[static_cast<std::size_t>(layer)];
  return step_spec.has_row_rules && options.mass ? (rows - 1) / times_more + 1 : rows;
}

/// Rows that are searched for at most.
std::int64_t Session::State::most_rows(std::int64_t layer) const {
  const std::int64_t rows = k[static_cast<std::size_t>(layer)];
  return step_spec.has_row_rules && options.error ? std::max(rows, context->tokens() / most_part)
                                                  : rows;
}

/// Rows of the round after one of so many; 0: all.
std::int64_t Session::State::rows_after(std::int64_t layer, std::int64_t rows) const {
  const std::int64_t wanted = k[static_cast<std::size_t>(layer)];
  if (rows < wanted) return wanted;
  return rows > most_rows(layer) / times_more ? 0 : times_more * rows;
}

/// Rows that a scan is asked for at most.
std::int64_t Session::State::most_scanned(std::int64_t layer) const {
  std::int64_t most = 0;
  for (std::int64_t rows = first_rows(layer); rows > 0;
       rows = step_spec.has_row_rules ? rows_after(layer, rows) : 0) {
    most = rows;
  }
  return most;
}

/// What the last scan gave beside its lists to the queries of a token of the step that it was for.
void Session::State::take_scanned(std::int64_t layer, std::int64_t token, const TailParts& out) {
  const std::int64_t first = token * shape.q_heads;
  const TailParts scanned = [&] {
    const Stopwatch waiting;
    const auto lock = device.compute()->lock();
    const TailParts given = backend->scanned();
    count_search(layer, waiting.seconds());
    return given;
  }();
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    if (heads[static_cast<std::size_t>(head)].count() == 0) continue;
    for (std::int64_t at = head * shape.group(); at < (head + 1) * shape.group(); ++at) {
      const PartialView estimate = scanned.estimate.part(first + at);
      merge(out.exact.part(at), scanned.exact.part(first + at));
      std::copy_n(estimate.out, shape.head_dim, out.estimate.part(at).out);
      *out.estimate.part(at).lse = *estimate.lse;
      out.noise[at] = scanned.noise[first + at];
    }
  }
}

/// Of the queries that go on, the rows that were listed count no more. among: which their token is
/// of those that were scanned for together.
void Session::State::forget_listed(std::int64_t among) {
  const std::int64_t lists = scanned_lists();
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    const auto of_head = list_rows.begin() + (among * shape.kv_heads + head) * lists;
    stats.rows_retrieved -= heads[static_cast<std::size_t>(head)].count() *
                            std::accumulate(of_head, of_head + lists, std::int64_t{0});
  }
}

/// After a round of so many rows: goes on with the queries for which a rule asks for more. How many
/// (rows_after); none: no query is left. own: some rows of the session's own are attended that no
/// window holds.
std::optional<std::int64_t> Session::State::next_round(std::int64_t layer, std::int64_t tokens,
                                                       std::int64_t rows, bool own,
                                                       PartialView exact, const TailParts& out) {
  if (!asks_for_more(tokens, rows < k[static_cast<std::size_t>(layer)], exact, out)) return {};
  begin_again(own, out.exact);
  if (rows == first_rows(layer)) {
    for (const HeadStep& step : heads) stats.retrieved_more += step.count();
  }
  return rows_after(layer, rows);
}

/// While a rule asks for it, has queries attend more rows than in the round before, by searches.
/// exact: what sinks and window give; out: what the first round gave, replaced.
void Session::State::search_more(std::int64_t layer, const TokenQueries& queries, PartialView exact,
                                 const TailParts& out) {
  const std::int64_t wanted = k[static_cast<std::size_t>(layer)];
  const bool own = between(segments.back(), layer, queries.first).size() > 0;
  std::int64_t rows = first_rows(layer);
  while (const auto next = next_round(layer, queries.tokens, rows, own, exact, out)) {
    rows = *next;
    if (rows == 0) return attend_all(layer, queries, out);
    const Stopwatch searching;
    const Searched one{this, queries};
    parallel_for(shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t head = begin; head < end; ++head) {
        if (heads[static_cast<std::size_t>(head)].count() == 0) continue;
        if (rows > wanted) search(layer, head, {&one, 1}, rows, nullptr);
        choose(layer, head, queries, rows);
      }
    });
    count_search(layer, searching.seconds());
    attend_found(layer, queries, out.exact);
    attend_rest(layer, out);
  }
}

/// Likewise by scans, for a token of the step that has been scanned for; among: which it is of
/// those that were scanned for together.
void Session::State::scan_more(const SessionStep& part, std::int64_t token, std::int64_t among) {
  const std::int64_t layer = part.step.layer;
  const TokenQueries queries = part.queries.part(token, 1);
  const PartialView exact = of_tokens(exact_part, token, 1);
  const TailParts out = estimated(of_tokens(part.found, token, 1), token, 1);
  const bool own = own_rows(layer, queries.first).size() > 0;
  SessionStep again = part;
  again.is_extra_round = true;
  again.token_in_scan = among;
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    copy_queries(layer, head, queries);
    Selector& selector = heads[static_cast<std::size_t>(head)].selector;
    selector.reset(shape.group());
    selector.find_nothing(shape.group());
  }
  attend_own(layer, queries, out.exact);
  take_scanned(layer, token, out);
  std::int64_t rows = first_rows(layer);
  while (const auto next = next_round(layer, 1, rows, own, exact, out)) {
    rows = *next;
    forget_listed(among);
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
      if (heads[static_cast<std::size_t>(head)].count() > 0)
        scanned_rows[static_cast<std::size_t>(among * shape.kv_heads + head)] = rows;
    }
    if (rows == 0) return attend_all(layer, queries, out);
    scan_and_attend(again, token, 1, rows);
    take_scanned(layer, token, out);
  }
}

/// Which queries share rows, or must be given to the search or the tail together.
ChoosesFor Session::State::chooses_for() const {
  const bool shared = step_spec.codes || options.select_by == SelectBy::group;
  ChoosesFor most = shared ? ChoosesFor::group : ChoosesFor::query;
  for (const SegmentIndex* index : {indices[0], tail})
    if (index != nullptr) most = std::max(most, index->spec.factory().chooses_for());
  return most;
}

/// Sets HeadStep::unsatisfied, and tells whether there are any. below_k: they have fewer than k
/// rows.
bool Session::State::asks_for_more(std::int64_t tokens, bool below_k, PartialView exact,
                                   const TailParts& out) {
  tail_shares.resize(static_cast<std::size_t>(tokens * shape.q_heads));
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    for (std::int64_t i = 0; i < heads[static_cast<std::size_t>(head)].count(); ++i) {
      const std::int64_t at = place(head, i);
      whole.reset(1, shape.head_dim);
      for (const PartialView& part : {exact, out.exact, out.estimate})
        merge(whole.view(), part.part(at));
      tail_shares[static_cast<std::size_t>(at)] =
          tail_share(whole.view(), out.estimate.part(at), out.noise[at]);
    }
  }
  // The error is that of a token's output, all its heads together. Where it is too large, each head
  // is to have its part of what is allowed at most. What is not a number is too large.
  constexpr double any = std::numeric_limits<double>::infinity();
  most_squared.assign(static_cast<std::size_t>(tokens), any);
  for (std::int64_t t = 0; options.error && t < tokens; ++t) {
    double squared = 0;
    double size = 0;
    for (std::int64_t at = t * shape.q_heads; at < (t + 1) * shape.q_heads; ++at) {
      const TailShare& of = tail_shares[static_cast<std::size_t>(at)];
      squared += of.squared;
      size += of.size;
    }
    const double most = *options.error * *options.error * size;
    if (!(squared <= most))
      most_squared[static_cast<std::size_t>(t)] = most / static_cast<double>(shape.q_heads);
  }
  const auto asks = [&](std::int64_t at) {
    const TailShare& of = tail_shares[static_cast<std::size_t>(at)];
    if (below_k && options.mass && !(of.share <= 1 - *options.mass)) return true;
    const double most = most_squared[static_cast<std::size_t>(at / shape.q_heads)];
    return most != any && !(of.squared <= most);
  };
  const ChoosesFor chooses = chooses_for();
  const std::int64_t alone = chooses == ChoosesFor::query ? 1 : shape.group();
  bool some = false;
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    HeadStep& step = heads[static_cast<std::size_t>(head)];
    step.unsatisfied.clear();
    const std::int64_t shared = chooses == ChoosesFor::question ? step.count() : alone;
    for (std::int64_t first = 0; first < step.count(); first += shared) {
      bool more = false;
      for (std::int64_t i = first; i < first + shared; ++i) more = more || asks(place(head, i));
      for (std::int64_t i = first; more && i < first + shared; ++i) step.unsatisfied.push_back(i);
    }
    some = some || !step.unsatisfied.empty();
  }
  return some;
}

/// Goes on with the queries of HeadStep::unsatisfied alone, which have attended nothing but, where
/// there are such, the session's own rows that no window holds.
void Session::State::begin_again(bool own, PartialView out) {
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    HeadStep& step = heads[static_cast<std::size_t>(head)];
    for (const std::int64_t i : step.unsatisfied) {
      stats.rows_retrieved -= step.selector.rows(i, searched_segments());
      const PartialView part = out.part(place(head, i));
      empty(part);
      if (own) merge(part, own_rest.view().part(place(head, i)));
    }
    step.selector.keep(step.unsatisfied);
    keep(step.unsatisfied, shape.head_dim, step.queries);
    for (auto& ranges : step.allowed) keep(step.unsatisfied, 1, ranges);
    keep(step.unsatisfied, 1, step.query_ids);
  }
}

/// Has the queries that are left attend all rows of the context: nothing is left to a tail.
void Session::State::attend_all(std::int64_t layer, const TokenQueries& queries,
                                const TailParts& out) {
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    HeadStep& step = heads[static_cast<std::size_t>(head)];
    step.selector.reset(step.count());
    take_own(layer, head, queries);
  }
  attend_found(layer, queries, out.exact);  // those of the session that some tokens do not see
  const Stopwatch attending;
  const std::int64_t d = shape.head_dim;
  const CausalWindow window = step_spec.always_attended(layer);
  parallel_for(shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      HeadStep& step = heads[static_cast<std::size_t>(head)];
      const std::int64_t count = step.count();
      const auto token = [&](std::int64_t i) {
        return step.query_ids[static_cast<std::size_t>(i)] / shape.group();
      };
      const RowsView rows = context->rows(layer, head);
      const PositionRange range = seen_of(segments[0], layer);
      const std::int64_t first = std::clamp(window.sinks, range.begin, range.end);
      const RowSpan between{rows.part({first, range.end}), first};
      step.retrieved.reset(count, d);
      for (std::int64_t i = 0, same = 0; i < count; i += same) {
        for (same = 1; i + same < count && token(i + same) == token(i);) ++same;
        // What lies before a token's window is what a token there sees of all rows before it.
        const AttentionShape of{.layers = 1,
                                .q_heads = same,
                                .kv_heads = 1,
                                .head_dim = d,
                                .scale = shape.softmax_scale(),
                                .softcap = shape.softcap};
        attend_tokens(of,
                      {&step.queries[static_cast<std::size_t>(i * d)], 1, same * d, d,
                       queries.first + token(i) - window.window},
                      {}, &between, step.retrieved.view().part(i, same));
      }
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t at = place(head, i);
        merge(out.exact.part(at), step.retrieved.view().part(i));
        empty(out.estimate.part(at));
        out.noise[at] = {};
      }
    }
  });
  for (const HeadStep& step : heads) {
    stats.went_dense += step.count();
    for (const PositionRange& range : step.allowed[0]) stats.rows_retrieved += range.size();
  }
  times(layer).attend += attending.seconds();
}

}  // namespace topkv
