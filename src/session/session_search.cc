// The part of a session's step where the host searches: which rows each query attends, and
// attending them.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "index/codes/codes_index.h"
#include "index/common/rule_based_index.h"
#include "index/common/scratch.h"
#include "src/core/io/faults.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/stopwatch.h"
#include "src/core/threads/threads.h"
#include "src/session/session_state.h"

namespace topkv {

/// Queries of one KV head, and where each may find rows: between the sinks and its window.
void Session::State::copy_queries(std::int64_t layer, std::int64_t head,
                                  const TokenQueries& queries) {
  HeadStep& step = heads[static_cast<std::size_t>(head)];
  const std::int64_t group = shape.group();
  const std::int64_t d = shape.head_dim;
  const std::int64_t count = queries.tokens * group;
  step.query_ids.resize(static_cast<std::size_t>(count));
  std::iota(step.query_ids.begin(), step.query_ids.end(), 0);
  step.queries.resize(static_cast<std::size_t>(count * d));
  for (auto& allowed : step.allowed) allowed.assign(static_cast<std::size_t>(count), {});
  const auto searched = std::span(segments).first(searched_segments());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t token = i / group;
    const float* q = queries.data + token * queries.token_stride +
                     (head * group + i % group) * queries.head_stride;
    std::copy(q, q + d, &step.queries[static_cast<std::size_t>(i * d)]);
    for (std::size_t s = 0; s < searched.size(); ++s) {
      step.allowed[s][static_cast<std::size_t>(i)] =
          between(searched[s], layer, queries.first + token);
    }
  }
}

/// A KV head's queries, in groups, which are one question, where they are all those of some tokens
/// (those that a rule asks more rows for need not be).
QueryBlock Session::State::block(const HeadStep& step,
                                 std::span<const PositionRange> allowed) const {
  const std::int64_t group = shape.group();
  bool whole = step.count() % group == 0;
  for (std::int64_t i = 0; whole && i < step.count(); ++i) {
    const std::int64_t first = step.query_ids[static_cast<std::size_t>(i / group * group)];
    whole = first % group == 0 && step.query_ids[static_cast<std::size_t>(i)] == first + i % group;
  }
  return {.data = step.queries.data(),
          .count = step.count(),
          .dim = shape.head_dim,
          .allowed = allowed,
          .group = whole ? group : 1,
          .scale = shape.softmax_scale(),
          .tokens = whole ? std::max<std::int64_t>(step.count() / group, 1) : 1};
}

/// Positions within a segment that the pass meets and that lie between the sinks and the window of
/// a token at a position, which may be beyond the rows that there are: of a token that only reads.
PositionRange Session::State::between(const Segment& segment, std::int64_t layer,
                                      std::int64_t position) const {
  const CausalWindow exact = step_spec.always_attended(layer);
  const std::int64_t end =
      std::clamp<std::int64_t>(exact.begin(position) - segment.first, 0, segment.tokens(layer));
  const PositionRange range =
      seen_of(segment, layer)
          .within({std::clamp<std::int64_t>(exact.sinks - segment.first, 0, end), end});
  return {range.begin, std::max(range.begin, range.end)};
}

/// Searches for so many rows for each query of a KV head: those of several sessions, with the same
/// index and as many tokens each, look at the keys of their context together. given: what a device
/// chose among the context's for the one session there is; null: nothing.
void Session::State::search(std::int64_t layer, std::int64_t head,
                            std::span<const Searched> sessions, std::int64_t rows,
                            const GivenEntries* given) {
  const State& one = *sessions[0].session;
  const Scratch<SharedQueries> shared;
  if (sessions.size() > 1) {
    shared->data.clear();
    shared->allowed.clear();
    for (const auto& [session, queries] : sessions) {
      const HeadStep& step = session->heads[static_cast<std::size_t>(head)];
      shared->data.insert(shared->data.end(), step.queries.begin(), step.queries.end());
      shared->allowed.insert(shared->allowed.end(), step.allowed[0].begin(), step.allowed[0].end());
    }
    one.segments[0].search(one.indices[0], layer, head,
                           {.data = shared->data.data(),
                            .count = std::ssize(shared->allowed),
                            .dim = one.shape.head_dim,
                            .allowed = shared->allowed,
                            .group = one.shape.group(),
                            .scale = one.shape.softmax_scale(),
                            .tokens = sessions[0].queries.tokens},
                           rows, nullptr, shared->found);
  }
  std::int64_t first = 0;
  for (const auto& [session, queries] : sessions) {
    reach_fault("session.search");
    HeadStep& step = session->heads[static_cast<std::size_t>(head)];
    for (std::size_t s = 0; s < session->segments.size(); ++s) {
      SearchResult& found = step.selector.found(s);
      if (s == 0 && sessions.size() > 1) {
        found.copy(shared->found, first, step.count());
        continue;
      }
      session->segments[s].search(session->indices[s], layer, head,
                                  session->block(step, step.allowed[s]), rows,
                                  s == 0 ? given : nullptr, found);
    }
    first += step.count();
  }
}

/// Has them attend so many of what was found.
void Session::State::choose(std::int64_t layer, std::int64_t head, const TokenQueries& queries,
                            std::int64_t rows) {
  HeadStep& step = heads[static_cast<std::size_t>(head)];
  if (options.select_by == SelectBy::group) {
    step.selector.choose_shared(rows, {.queries = step.queries.data(),
                                       .heads = shape.group(),
                                       .layer = layer,
                                       .kv_head = head,
                                       .scale = shape.softmax_scale(),
                                       .softcap = shape.softcap});
  } else {
    step.selector.choose(rows);
  }
  if (attends_own()) take_own(layer, head, queries);
}

/// Where a query of a KV head stands in partials of [tokens x q_heads].
std::int64_t Session::State::place(std::int64_t head, std::int64_t query) const {
  const std::int64_t group = shape.group();
  const std::int64_t i =
      heads[static_cast<std::size_t>(head)].query_ids[static_cast<std::size_t>(query)];
  return i / group * shape.q_heads + head * group + i % group;
}

void Session::State::measure_recall(std::int64_t layer, const TokenQueries& queries, bool chosen) {
  const Stopwatch measuring;
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    if (step_spec.codes || step_spec.has_row_rules)
      copy_queries(layer, head, queries);  // those of all heads
    const GivenEntries given =
        chosen ? backend->chosen().part(head, shape.kv_heads) : GivenEntries{};
    measure_recall(layer, head, chosen ? &given : nullptr);
  }
  measuring_seconds += measuring.seconds();
}

/// Compares the context's index with exact search on the queries of the last search.
void Session::State::measure_recall(std::int64_t layer, std::int64_t head,
                                    const GivenEntries* given) {
  const HeadStep& step = heads[static_cast<std::size_t>(head)];
  const std::int64_t count = step.count();
  const QueryBlock queries = block(step, step.allowed[0]);
  // Of a scan: so many as it was asked for. (Where a rule had all rows attended: k.)
  const auto scanned = [&](std::int64_t q) {
    return scanned_rows[static_cast<std::size_t>(q / shape.group() * shape.kv_heads + head)];
  };
  const auto rows_of = [&](std::int64_t q) {
    return step_spec.codes && scanned(q) > 0 ? scanned(q) : k[static_cast<std::size_t>(layer)];
  };
  std::int64_t rows = 0;
  for (std::int64_t q = 0; q < count; ++q) rows = std::max(rows, rows_of(q));
  SearchResult wanted;
  SearchResult found;
  segments[0].search(nullptr, layer, head, queries, rows, nullptr, wanted);
  if (!step_spec.codes) segments[0].search(indices[0], layer, head, queries, rows, given, found);
  for (std::int64_t q = 0; q < count; ++q) {
    std::vector<std::int64_t> have;
    const auto all = wanted.positions(q);
    const auto best = all.first(std::min(all.size(), static_cast<std::size_t>(rows_of(q))));
    if (step_spec.codes && scanned(q) == 0) {
      have.assign(best.begin(), best.end());
    } else if (step_spec.codes) {  // rare rows are attended beside those that are found
      const KeyIndex& index = *indices[0]->layer(layer).heads[static_cast<std::size_t>(head)];
      const auto rare = dynamic_cast<const CodesIndex&>(index).rare();
      have.assign(rare.begin(), rare.end());
      const std::int64_t first = (q / shape.group() * shape.kv_heads + head) * scanned_lists();
      for (std::int64_t at = first; at < first + backend->scan_lists(); ++at) {
        const auto& listed = listed_rows[static_cast<std::size_t>(at)];
        have.insert(have.end(), listed.begin(), listed.end());
      }
    } else {
      have.assign(found.positions(q).begin(), found.positions(q).end());
    }
    std::sort(have.begin(), have.end());
    double mass = 0;
    double mass_found = 0;
    const float scale = shape.softmax_scale();
    for (std::size_t i = 0; i < best.size(); ++i) {
      const bool hit = std::binary_search(have.begin(), have.end(), best[i]);
      ++stats.exact_rows;
      stats.exact_rows_found += hit;
      const auto score = [&](std::size_t at) {
        const float scaled = scale * wanted.scores(q)[at];
        return shape.softcap > 0 ? shape.softcap * std::tanh(scaled / shape.softcap) : scaled;
      };
      const double weight = std::exp(score(i) - score(0));  // the best is first
      mass += weight;
      mass_found += hit ? weight : 0;
    }
    if (mass > 0) {
      const auto percent = static_cast<std::size_t>(100 * mass_found / mass * (1 + 1e-12));
      ++stats.mass_found[std::min<std::size_t>(percent, 100)];
    }
  }
}

/// Has a device that can do so choose for a step of one token, before the queries are on the host.
/// (For several sessions, and several tokens, an index reads what stands for keys once.)
void Session::State::begin_choice(SessionStep& part) {
  const std::int64_t layer = part.step.layer;
  part.chosen = false;
  if (!step_spec.selection || !part.searched || part.step.tokens != 1 || part.session_index >= 0)
    return;
  const std::int64_t rows = k[static_cast<std::size_t>(layer)];
  const PositionRange allowed = between(segments[0], layer, part.queries.first);
  const auto& index = dynamic_cast<const RuleBasedIndex&>(*indices[0]->layer(layer).heads[0]);
  if (allowed.size() == 0 || index.takes_all(allowed.size(), rows)) return;
  backend->choose(layer, allowed, rows);
  part.chosen = true;
}

/// Which rows each query of some sessions attends. chosen: a device has begun to choose for the one
/// session.
void Session::State::search_all(std::int64_t layer, std::span<const Searched> sessions,
                                bool chosen) {
  const Stopwatch searching;
  const State& one = *sessions[0].session;
  const GivenEntries all = chosen ? one.backend->chosen() : GivenEntries{};
  parallel_for(one.shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      for (const auto& [session, queries] : sessions) session->copy_queries(layer, head, queries);
      const GivenEntries given = chosen ? all.part(head, one.shape.kv_heads) : GivenEntries{};
      search(layer, head, sessions, one.k[static_cast<std::size_t>(layer)],
             chosen ? &given : nullptr);
      for (const auto& [session, queries] : sessions)
        session->choose(layer, head, queries, session->first_rows(layer));
    }
  });
  const double seconds = searching.seconds() / static_cast<double>(sessions.size());
  for (const auto& [session, queries] : sessions) {
    session->count_search(layer, seconds);
  }
}

/// Searches together for sessions of a step that use the same index with the same k, as far as what
/// is found for them all is small enough.
void Session::State::search_together(std::span<SessionStep> parts) {
  const Scratch<std::vector<Searched>> sessions;
  for (const SessionStep& first : parts) {
    const State& one = *first.session;
    const std::int64_t layer = first.step.layer;
    const std::int64_t room = one.tokens_at_once(first);
    std::int64_t tokens = 0;
    sessions->clear();
    for (SessionStep& part : parts) {
      const State& of = *part.session;
      if (!part.searched || of.step_spec.codes || part.found_rows ||
          of.indices[0] != one.indices[0] ||
          of.k[static_cast<std::size_t>(layer)] != one.k[static_cast<std::size_t>(layer)] ||
          tokens + part.step.tokens > std::min(room, of.tokens_at_once(part))) {
        continue;
      }
      tokens += part.step.tokens;
      part.found_rows = true;
      sessions->push_back({part.session, part.queries});
    }
    if (!sessions->empty()) search_all(layer, *sessions, false);
  }
}

/// Attends the rows found and merges them into `out`.
void Session::State::attend_found(std::int64_t layer, const TokenQueries& queries,
                                  PartialView out) {
  reach_fault("session.attend");
  const Stopwatch attending;
  const std::int64_t d = shape.head_dim;
  const float scale = shape.softmax_scale();
  // One task per query head: with few KV heads there would be too few tasks for the cores.
  const std::int64_t per_head = queries.tokens * shape.group();
  for (HeadStep& step : heads) {
    step.retrieved.reset(per_head, d);
  }
  parallel_for(shape.kv_heads * per_head, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t head = task / per_head;
      const std::int64_t i = task % per_head;
      check_stop();
      HeadStep& step = heads[static_cast<std::size_t>(head)];
      if (i >= step.count()) continue;
      const float* q = &step.queries[static_cast<std::size_t>(i * d)];
      const PartialView target = out.part(place(head, i));
      const PartialView part = step.retrieved.view().part(i);
      for (std::size_t s = 0; s < segments.size(); ++s) {
        const std::vector<std::int64_t>& positions = step.selector.of(s, i);
        if (positions.empty()) continue;
        attend_rows(q, segments[s].rows(layer, head), positions, scale, part, shape.softcap);
        merge(target, part);
      }
    }
  });
  for (const HeadStep& step : heads) {
    for (std::int64_t i = 0; i < step.count(); ++i)
      stats.rows_retrieved += step.selector.rows(i, searched_segments());
  }
  times(layer).attend += attending.seconds();
}

}  // namespace topkv
