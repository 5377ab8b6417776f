// The rules of RetrievalOptions that say how many rows are enough: a step's queries attend some of
// the best rows first, and what the tail then says of its share and its error tells which of them
// are to attend more. Each query goes its own way (those of a group that shares its rows go
// together), so that steps of many tokens give what steps of one would.
#include <algorithm>
#include <limits>
#include <numeric>

#include "index/code_pass.h"
#include "src/context/session_state.h"
#include "src/core/stopwatch.h"
#include "src/core/threads.h"

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
  return seen.judged && options.mass ? (rows - 1) / times_more + 1 : rows;
}

/// Rows that are searched for at most.
std::int64_t Session::State::most_rows(std::int64_t layer) const {
  const std::int64_t rows = k[static_cast<std::size_t>(layer)];
  return seen.judged && options.error ? std::max(rows, context->tokens() / most_part) : rows;
}

/// The first round of tokens from number `token` of the step on was a scan: what it gave beside its
/// lists joins what is judged.
void Session::State::take_scanned(std::int64_t layer, std::int64_t token,
                                  const TokenQueries& queries, const TailParts& out) {
  const std::int64_t count = queries.tokens * shape.q_heads;
  const std::int64_t first = token * shape.q_heads;
  const TailParts scanned = [&] {
    const auto lock = device.compute()->lock();
    return backend->scanned();
  }();
  merge(out.exact, scanned.exact.part(first, count));
  std::copy_n(scanned.estimate.out + first * shape.head_dim, count * shape.head_dim,
              out.estimate.out);
  std::copy_n(scanned.estimate.lse + first, count, out.estimate.lse);
  std::copy_n(scanned.noise + first, count, out.noise);
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    HeadStep& step = heads[static_cast<std::size_t>(head)];
    if (queries.tokens == 1) {  // of more, attend_between has
      copy_queries(layer, head, queries);
      step.selector.reset(step.count());
    }
    step.selector.find_nothing(step.count());
  }
}

/// Of the queries that go on, the rows that the last scan listed count no more. first: of its
/// tokens, the one that these queries begin with.
void Session::State::forget_listed(std::int64_t first) {
  const std::int64_t lists = scanned_lists();
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    for (const std::int64_t number : heads[static_cast<std::size_t>(head)].numbers) {
      const std::int64_t token = first + number / shape.group();
      const auto of_head = list_rows.begin() + (token * shape.kv_heads + head) * lists;
      stats.rows_retrieved -= std::accumulate(of_head, of_head + lists, std::int64_t{0});
    }
  }
}

/// While a rule asks for it, has queries attend more rows than in the round before. exact: what
/// sinks and window give; out: what the first round gave, replaced. scanned: where that was a scan,
/// which of its tokens the queries begin with; else not_scanned.
void Session::State::retrieve_more(std::int64_t layer, const TokenQueries& queries,
                                   PartialView exact, const TailParts& out, std::int64_t scanned) {
  const std::int64_t wanted = k[static_cast<std::size_t>(layer)];
  const std::int64_t most = most_rows(layer);
  const bool own = between(segments.back(), layer, queries.first).size() > 0;
  std::int64_t rows = first_rows(layer);
  // A scan lists for all heads of a group what it finds for any of them.
  const std::int64_t had =
      scanned == not_scanned ? 0
                             : listed_per_row * shape.group() * std::min(wanted, context->tokens());
  tail_shares.resize(static_cast<std::size_t>(queries.tokens * shape.q_heads));
  for (bool first = true; asks_for_more(queries.tokens, rows < wanted, exact, out); first = false) {
    begin_again(own, out.exact);
    if (first) {
      for (const HeadStep& step : heads) stats.retrieved_more += step.count();
      if (scanned != not_scanned) forget_listed(scanned);
    }
    do {
      if (rows >= wanted && rows > most / times_more) {
        attend_all(layer, queries, out);
        return;
      }
      rows = rows < wanted ? wanted : times_more * rows;
    } while (rows <= had);
    const Stopwatch searching;
    const Searched one{this, queries};
    parallel_for(shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t head = begin; head < end; ++head) {
        if (heads[static_cast<std::size_t>(head)].count() == 0) continue;
        if (rows > wanted) search(layer, head, {&one, 1}, rows);
        choose(layer, head, queries, rows);
      }
    });
    const double seconds = searching.seconds();
    stats.search_seconds += seconds;
    times(layer).search += seconds;
    attend_found(layer, queries, out.exact);
    attend_rest(layer, out);
  }
}

/// Sets HeadStep::more, and tells whether there are any. below_k: they have fewer than k rows.
bool Session::State::asks_for_more(std::int64_t tokens, bool below_k, PartialView exact,
                                   const TailParts& out) {
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
  const std::int64_t shared = options.select_by == SelectBy::group ? shape.group() : 1;
  bool some = false;
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    HeadStep& step = heads[static_cast<std::size_t>(head)];
    step.more.clear();
    for (std::int64_t first = 0; first < step.count(); first += shared) {
      bool more = false;
      for (std::int64_t i = first; i < first + shared; ++i) more = more || asks(place(head, i));
      for (std::int64_t i = first; more && i < first + shared; ++i) step.more.push_back(i);
    }
    some = some || !step.more.empty();
  }
  return some;
}

/// Goes on with the queries of HeadStep::more alone, which have attended nothing but, where there
/// are such, the session's own rows that no window holds.
void Session::State::begin_again(bool own, PartialView out) {
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    HeadStep& step = heads[static_cast<std::size_t>(head)];
    for (const std::int64_t i : step.more) {
      stats.rows_retrieved -= step.selector.rows(i);
      const PartialView part = out.part(place(head, i));
      empty(part);
      if (own) merge(part, own_rest.view().part(place(head, i)));
    }
    step.selector.keep(step.more);
    keep(step.more, shape.head_dim, step.queries);
    for (auto& ranges : step.allowed) keep(step.more, 1, ranges);
    keep(step.more, 1, step.numbers);
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
  const CausalWindow window = seen.exact(layer);
  parallel_for(shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      HeadStep& step = heads[static_cast<std::size_t>(head)];
      const std::int64_t count = step.count();
      const auto token = [&](std::int64_t i) {
        return step.numbers[static_cast<std::size_t>(i)] / shape.group();
      };
      const RowsView rows = context->rows(layer, head);
      const RowSpan between{rows.part({std::min(window.sinks, rows.count), rows.count}),
                            window.sinks};
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
