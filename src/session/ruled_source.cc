#include "src/session/ruled_source.h"

#include <algorithm>
#include <limits>

#include "src/core/threads/stopwatch.h"
#include "src/core/threads/threads.h"

namespace topkv {
namespace {

void empty(PartialView part) {
  std::fill_n(part.out, part.heads * part.head_dim, 0.0F);
  std::fill_n(part.lse, part.heads, empty_lse);
}

/// Moves the values of these queries to the front. width: the number of values of a query.
template <class T>
void keep(const std::vector<std::int64_t>& queries, std::int64_t width, std::vector<T>& values) {
  for (std::size_t to = 0; to < queries.size(); ++to) {
    const auto at = static_cast<std::int64_t>(to);
    if (queries[to] == at) continue;
    std::copy_n(values.begin() + queries[to] * width, width, values.begin() + at * width);
  }
  values.resize(queries.size() * static_cast<std::size_t>(width));
}

/// Returns which queries share rows, or must be given to the search or the tail together.
ChoosesFor together(const SessionCore& session) {
  const bool shared = session.spec.scans() || session.options.select_by == SelectBy::group;
  ChoosesFor most = shared ? ChoosesFor::group : ChoosesFor::query;
  for (const SegmentIndex* index : {session.indices[0], session.tail})
    if (index != nullptr) most = std::max(most, index->spec.factory().traits().chooses_for);
  return most;
}

}  // namespace

RuledSource::RuledSource(SessionCore& session, QueriesByHead& heads, OwnRowsSource& own,
                         RoundsSource& source)
    : session_(session),
      heads_(heads),
      own_(own),
      source_(source),
      chooses_for_(together(session)) {}

void RuledSource::contribute(Step& step) {
  exact_ = [&] {
    const Stopwatch waiting;  // for scans, too, if there are any
    const auto lock = session_.device.compute()->lock();
    const PartialView given = session_.backend.window->partial();
    source_.count_wait(step.layer(), waiting.seconds());
    return given;
  }();
  each_block(step, [&](const StepBlock& block) {
    source_.find(block);
    const std::int64_t tokens = source_.round_tokens(block.queries.tokens);
    for (std::int64_t t = 0; t < block.queries.tokens; t += tokens)
      run_rounds(block_of(step, block.token + t, tokens));
    if (session_.options.measure_recall) source_.measure_recall(block);
  });
}

void RuledSource::run_rounds(const StepBlock& round) {
  const std::int64_t layer = round.layer();
  // Some of the session's own rows are attended, and the window of the last token lacks them.
  const bool own =
      session_
          .between(session_.segments.back(), layer, round.queries.first + round.queries.tokens - 1)
          .size() > 0;
  source_.attend_first(round);
  const std::int64_t first = session_.schedule.first(layer);
  for (std::int64_t rows = first; judge(round, rows < session_.schedule.k(layer));) {
    keep_unsatisfied(round, own);
    if (rows == first) {
      for (const HeadQueries& of_head : heads_) session_.stats.retrieved_more += of_head.count();
    }
    rows = session_.schedule.after(layer, rows);
    source_.discount(round, rows);
    if (rows == 0) return attend_all(round);
    source_.attend_more(round, rows);
  }
}

/// Sets HeadQueries::unsatisfied, and returns whether there are such queries. below_k: they have
/// fewer than k rows.
bool RuledSource::judge(const StepBlock& round, bool below_k) {
  const AttentionShape& shape = session_.shape;
  const RetrievalOptions& options = session_.options;
  const std::int64_t tokens = round.queries.tokens;
  const PartialView exact = round.step.part(exact_, round.token, tokens);
  shares_.resize(static_cast<std::size_t>(tokens * shape.q_heads));
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    for (std::int64_t i = 0; i < heads_[head].count(); ++i) {
      const std::int64_t at = heads_.place(head, i);
      whole_.reset(1, shape.head_dim);
      for (const PartialView& part : {exact, round.host.exact, round.host.estimate})
        merge(whole_.view(), part.part(at));
      shares_[static_cast<std::size_t>(at)] =
          tail_share(whole_.view(), round.host.estimate.part(at), round.host.noise[at]);
    }
  }
  // The error is that of a token's output, all its heads together. If it is too large, each head
  // may have its part of the error that is allowed. A value that is not a number is too large.
  constexpr double any = std::numeric_limits<double>::infinity();
  most_squared_.assign(static_cast<std::size_t>(tokens), any);
  for (std::int64_t t = 0; options.error && t < tokens; ++t) {
    double squared = 0;
    double size = 0;
    for (std::int64_t at = t * shape.q_heads; at < (t + 1) * shape.q_heads; ++at) {
      const TailShare& of = shares_[static_cast<std::size_t>(at)];
      squared += of.squared;
      size += of.size;
    }
    const double most = *options.error * *options.error * size;
    if (!(squared <= most))
      most_squared_[static_cast<std::size_t>(t)] = most / static_cast<double>(shape.q_heads);
  }
  const auto asks = [&](std::int64_t at) {
    const TailShare& of = shares_[static_cast<std::size_t>(at)];
    if (below_k && options.mass && !(of.share <= 1 - *options.mass)) return true;
    const double most = most_squared_[static_cast<std::size_t>(at / shape.q_heads)];
    return most != any && !(of.squared <= most);
  };
  const std::int64_t alone = chooses_for_ == ChoosesFor::query ? 1 : shape.group();
  bool some = false;
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    HeadQueries& of_head = heads_[head];
    of_head.unsatisfied.clear();
    const std::int64_t shared = chooses_for_ == ChoosesFor::question ? of_head.count() : alone;
    for (std::int64_t first = 0; first < of_head.count(); first += shared) {
      bool more = false;
      for (std::int64_t i = first; i < first + shared; ++i)
        more = more || asks(heads_.place(head, i));
      for (std::int64_t i = first; more && i < first + shared; ++i)
        of_head.unsatisfied.push_back(i);
    }
    some = some || !of_head.unsatisfied.empty();
  }
  return some;
}

/// Goes on with the queries of HeadQueries::unsatisfied alone. Their partials then hold no row but,
/// with `own`, the session's own rows that no window holds.
void RuledSource::keep_unsatisfied(const StepBlock& round, bool own) {
  for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head) {
    HeadQueries& of_head = heads_[head];
    for (const std::int64_t i : of_head.unsatisfied) {
      session_.stats.rows_retrieved -= of_head.selector.rows(i, session_.searched_segments);
      const std::int64_t at = heads_.place(head, i);
      const PartialView part = round.host.exact.part(at);
      empty(part);
      if (own) merge(part, own_.last().part(at));
    }
    of_head.selector.keep(of_head.unsatisfied);
    keep(of_head.unsatisfied, session_.shape.head_dim, of_head.queries);
    for (auto& ranges : of_head.allowed) keep(of_head.unsatisfied, 1, ranges);
    keep(of_head.unsatisfied, 1, of_head.query_ids);
  }
}

/// Has the queries that are left attend all rows of the context: nothing is left to a tail.
void RuledSource::attend_all(const StepBlock& round) {
  const std::int64_t layer = round.layer();
  const TokenQueries& queries = round.queries;
  const TailParts& out = round.host;
  for (std::int64_t head = 0; head < session_.shape.kv_heads; ++head) {
    heads_[head].selector.reset(heads_[head].count());
    own_.select_between(round, head);
  }
  // Own rows that some tokens do not have in their window.
  heads_.attend_selected(round);
  const Stopwatch attending;
  const AttentionShape& shape = session_.shape;
  const std::int64_t d = shape.head_dim;
  const CausalWindow window = session_.spec.always_attended(layer);
  parallel_for(shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      HeadQueries& of_head = heads_[head];
      const std::int64_t count = of_head.count();
      const auto token = [&](std::int64_t i) {
        return of_head.query_ids[static_cast<std::size_t>(i)] / shape.group();
      };
      const RowsView rows = session_.context->rows(layer, head);
      const PositionRange range = session_.seen_of(session_.segments[0], layer);
      const std::int64_t first = std::clamp(window.sinks, range.begin, range.end);
      const RowSpan between{rows.part({first, range.end}), first};
      of_head.retrieved.reset(count, d);
      for (std::int64_t i = 0, same = 0; i < count; i += same) {
        for (same = 1; i + same < count && token(i + same) == token(i);) ++same;
        // The rows before a token's window are all earlier rows of a token there.
        const AttentionShape of{.layers = 1,
                                .q_heads = same,
                                .kv_heads = 1,
                                .head_dim = d,
                                .scale = shape.softmax_scale(),
                                .softcap = shape.softcap};
        attend_tokens(of,
                      {&of_head.queries[static_cast<std::size_t>(i * d)], 1, same, d,
                       queries.first + token(i) - window.window},
                      {}, {&between, 1}, of_head.retrieved.view().part(i, same));
      }
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t at = heads_.place(head, i);
        merge(out.exact.part(at), of_head.retrieved.view().part(i));
        empty(out.estimate.part(at));
        out.noise[at] = {};
      }
    }
  });
  for (const HeadQueries& of_head : heads_) {
    session_.stats.went_dense += of_head.count();
    for (const PositionRange& range : of_head.allowed[0])
      session_.stats.rows_retrieved += range.size();
  }
  session_.times(layer).attend += attending.seconds();
}

}  // namespace topkv
