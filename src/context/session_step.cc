// A session's step.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "index/codes_index.h"
#include "src/context/session_state.h"
#include "src/core/convert.h"
#include "src/core/faults.h"
#include "src/core/stopwatch.h"
#include "src/core/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

// Memory of the searches of a step: what is kept of one row that was found, in all places until it
// is attended, and what may be kept at a time.
constexpr std::int64_t search_bytes = 64;
constexpr std::int64_t search_memory = std::int64_t{256} << 20;

/// Adds the time since the last call to a counter.
class Lap {
 public:
  void operator()(double& counter) {
    counter += watch_.seconds();
    watch_ = Stopwatch();
  }

 private:
  Stopwatch watch_;
};

/// Threads that were woken for a step do not outlive it, whatever is thrown.
struct Released {
  Helpers& helpers;
  ~Released() { helpers.release(); }
};

}  // namespace

/// use(rows): those of each segment; one span per KV head.
template <class Use>
void Session::State::each_segment(std::int64_t layer, const Use& use) {
  for (const Segment& segment : segments) {
    spans.clear();
    for (std::int64_t head = 0; head < shape.kv_heads; ++head)
      spans.push_back({segment.rows(layer, head), segment.first});
    use(std::span<const RowSpan>(spans));
  }
}

void Session::State::load(std::int64_t layer) {
  const std::int64_t end = position(layer);
  const auto lock = device.compute()->lock();
  each_segment(layer, [&](std::span<const RowSpan> rows) { backend->load(layer, rows, end); });
}

/// The way of a step: its tokens' rows join the session's, they attend what is seen exactly, then
/// the rows that are found among the rest. While these are searched the device is free for others.
void Session::State::step(const AttentionStep& step) {
  const std::int64_t layer = step.layer;
  const std::int64_t first = position(layer);
  ComputeDevice& compute = *device.compute();
  StepTimes& time = times(layer);
  const Stopwatch whole;
  const double before = stats.search_seconds + measuring_seconds;

  auto lock = compute.lock();
  Lap lap;
  reach_fault("session.begin");
  backend->begin(step, first);
  const bool searched = searches(layer, first + step.tokens);
  const Released released{helpers};
  if (searched && seen.codes) {
    // Before the queries are on the host, so that the device goes on while they come.
    const std::int64_t tokens = std::min(step.tokens, backend->scan_tokens());
    scan(layer, 0, {nullptr, tokens, 0, 0, first});
    if (step.tokens == 1) helpers.wake(helpers_for(1));  // for when the lists come
  }
  const DecodeBackend::Step given = backend->given();
  lap(time.q_out);
  BesideScan beside{lock, given};
  const bool scans = helpers.awake();
  if (!scans) {
    append(layer, given, step.tokens);
    lap(time.append);
    attend_exact(layer);
    lap(time.window);
  }
  if (searched) {
    if (seen.judged) exact_part = backend->exact_part();
    const PartialView found = backend->room();
    if (!scans) lock = {};
    std::fill_n(found.lse, found.heads, empty_lse);
    const std::int64_t d = shape.head_dim;
    const bool estimates = seen.tail && !seen.codes;
    if (estimates) {
      estimate.reset(step.tokens * shape.q_heads, d);
      noise.resize(static_cast<std::size_t>(step.tokens * shape.q_heads));
    }
    retrieve(layer, {given.q, step.tokens, shape.q_heads * d, d, first},
             {estimate.view(), found, noise.data()}, scans ? &beside : nullptr);
    lock = compute.lock();
    lap = Lap();
    backend->add(found);
    if (estimates) backend->add_tail(estimate.view(), noise.data());
  }
  reach_fault("session.finish");
  backend->finish(step);
  lap(time.merge);

  stats.steps += step.tokens;
  stats.attend_seconds += whole.seconds() - (stats.search_seconds + measuring_seconds - before);
}

void Session::State::attend_exact(std::int64_t layer) {
  each_segment(layer, [&](std::span<const RowSpan> rows) { backend->attend(layer, rows); });
}

/// x: [tokens, heads, head_dim], which are the next tokens of the layer.
void Session::State::check_finite(std::int64_t layer, std::string_view what, const float* x,
                                  std::int64_t tokens, std::int64_t heads) const {
  const std::int64_t d = shape.head_dim;
  const std::int64_t bad = first_not_finite(x, tokens * heads * d);
  if (bad < 0) return;
  throw InvalidArgument(fmt::format("{} of layer {}, {} head {}, position {} is not finite", what,
                                    layer, what == "q" ? "query" : "KV", bad / d % heads,
                                    position(layer) + bad / d / heads));
}

/// Takes the next tokens of a layer, unless K and V have none.
void Session::State::append(std::int64_t layer, const DecodeBackend::Step& given,
                            std::int64_t tokens) {
  check_finite(layer, "q", given.q, tokens, shape.q_heads);
  const std::int64_t rows = given.k.tokens;
  if (rows == 0) return;
  check_finite(layer, "K", static_cast<const float*>(given.k.data), rows, shape.kv_heads);
  check_finite(layer, "V", static_cast<const float*>(given.v.data), rows, shape.kv_heads);
  own->append(layer, given.k, given.v);
}

/// Queries of one KV head, and where each may find rows: between the sinks and its window.
void Session::State::copy_queries(std::int64_t layer, std::int64_t head,
                                  const TokenQueries& queries) {
  HeadStep& step = heads[static_cast<std::size_t>(head)];
  const std::int64_t group = shape.group();
  const std::int64_t d = shape.head_dim;
  const std::int64_t count = queries.tokens * group;
  step.numbers.resize(static_cast<std::size_t>(count));
  std::iota(step.numbers.begin(), step.numbers.end(), 0);
  step.queries.resize(static_cast<std::size_t>(count * d));
  for (auto& allowed : step.allowed) allowed.assign(static_cast<std::size_t>(count), {});
  const auto searched = std::span(segments).first(segments.size() - (attends_own() ? 1 : 0));
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

/// Positions within a segment that lie between the sinks and the window of a token at a position,
/// which may be beyond the rows that there are: of a token that only reads.
PositionRange Session::State::between(const Segment& segment, std::int64_t layer,
                                      std::int64_t position) const {
  const CausalWindow exact = seen.exact(layer);
  const std::int64_t end = std::clamp<std::int64_t>(exact.begin(position) - segment.first, 0,
                                                    segment.store->size(layer));
  return {std::clamp<std::int64_t>(exact.sinks - segment.first, 0, end), end};
}

/// Searches for so many rows for each query of a KV head.
void Session::State::search(std::int64_t layer, std::int64_t head, std::int64_t rows) {
  HeadStep& step = heads[static_cast<std::size_t>(head)];
  reach_fault("session.search");
  for (std::size_t s = 0; s < segments.size(); ++s) {
    segments[s].search(indices[s], layer, head,
                       {step.queries.data(), step.count(), shape.head_dim, step.allowed[s]}, rows,
                       step.selector.found(s));
  }
}

/// Has them attend so many of what was found.
void Session::State::choose(std::int64_t layer, std::int64_t head, const TokenQueries& queries,
                            std::int64_t rows) {
  heads[static_cast<std::size_t>(head)].selector.choose(
      rows, options.select_by == SelectBy::group ? shape.group() : 1);
  if (attends_own()) take_own(layer, head, queries);
}

/// Where a query of a KV head stands in partials of [tokens x q_heads].
std::int64_t Session::State::place(std::int64_t head, std::int64_t query) const {
  const std::int64_t group = shape.group();
  const std::int64_t i =
      heads[static_cast<std::size_t>(head)].numbers[static_cast<std::size_t>(query)];
  return i / group * shape.q_heads + head * group + i % group;
}

void Session::State::measure_recall(std::int64_t layer, const TokenQueries& queries) {
  const Stopwatch measuring;
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    if (seen.codes || seen.judged) copy_queries(layer, head, queries);  // those of all heads
    measure_recall(layer, head);
  }
  measuring_seconds += measuring.seconds();
}

/// Compares the context's index with exact search on the queries of the last search.
void Session::State::measure_recall(std::int64_t layer, std::int64_t head) {
  const HeadStep& step = heads[static_cast<std::size_t>(head)];
  const std::int64_t count = step.count();
  const QueryBlock queries{step.queries.data(), count, shape.head_dim, step.allowed[0]};
  const std::int64_t rows = k[static_cast<std::size_t>(layer)];
  SearchResult wanted;
  SearchResult found;
  segments[0].search(nullptr, layer, head, queries, rows, wanted);
  if (!seen.codes) segments[0].search(indices[0], layer, head, queries, rows, found);
  for (std::int64_t q = 0; q < count; ++q) {
    std::vector<std::int64_t> have;
    if (seen.codes) {  // rare rows are attended beside those that are found
      const KeyIndex& index = *indices[0]->layer(layer).heads[static_cast<std::size_t>(head)];
      const auto rare = dynamic_cast<const CodesIndex&>(index).rare();
      have.assign(rare.begin(), rare.end());
      const std::int64_t lists = backend->scan_lists();
      const std::int64_t first = (q / shape.group() * shape.kv_heads + head) * lists;
      for (std::int64_t number = first; number < first + lists; ++number) {
        const auto& listed = listed_rows[static_cast<std::size_t>(number)];
        have.insert(have.end(), listed.begin(), listed.end());
      }
    } else {
      have.assign(found.positions(q).begin(), found.positions(q).end());
    }
    std::sort(have.begin(), have.end());
    for (const std::int64_t position : wanted.positions(q)) {
      ++stats.exact_rows;
      stats.exact_rows_found += std::binary_search(have.begin(), have.end(), position);
    }
  }
}

/// Rows to find lie between the sinks and the window of the last token, which is at end - 1.
bool Session::State::searches(std::int64_t layer, std::int64_t end) const {
  return seen.retrieves(layer) && end - seen.window > seen.sinks;
}

/// Searches for the queries, attends what is found and merges it into out.exact, some tokens at a
/// time: with a large k, what a search gives is large. beside: null where no scan has begun.
void Session::State::retrieve(std::int64_t layer, const TokenQueries& queries, const TailParts& out,
                              BesideScan* beside) {
  const std::int64_t end = queries.first + queries.tokens;
  const std::int64_t rows = std::min(most_rows(layer), end);
  const std::int64_t room =
      seen.codes ? backend->scan_tokens() : search_memory / (shape.q_heads * search_bytes * rows);
  const std::int64_t tokens = std::clamp<std::int64_t>(room, 1, queries.tokens);
  for (std::int64_t t = 0; t < queries.tokens; t += tokens) {
    TokenQueries block = queries;
    block.data += t * queries.token_stride;
    block.first += t;
    block.tokens = std::min(tokens, queries.tokens - t);
    if (seen.codes) {
      if (t > 0) {  // the first was begun with the step
        const auto held = device.compute()->lock();
        scan(layer, t, block);
      }
    } else {
      search_all(layer, block);
    }
    const std::int64_t before = t * shape.q_heads;
    const auto of_block = [&](PartialView of) {
      return of.part(before, block.tokens * shape.q_heads);
    };
    const PartialView part = of_block(out.exact);
    if (seen.codes) {
      if (!helpers.awake()) helpers.wake(helpers_for(block.tokens));
      attend_listed(layer, block, beside, part);
      attend_between(layer, block, part);
      attend_own(layer, block, part);
    } else {
      if (attends_own()) attend_own(layer, block, part);
      attend_found(layer, block, part);
      if (seen.tail) {
        const TailParts parts{of_block(out.estimate), part, out.noise + before};
        attend_rest(layer, parts);
        if (seen.judged) retrieve_more(layer, block, of_block(exact_part), parts);
      }
    }
    if (options.measure_recall) measure_recall(layer, block);
  }
}

void Session::State::search_all(std::int64_t layer, const TokenQueries& queries) {
  const Stopwatch searching;
  parallel_for(shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      copy_queries(layer, head, queries);
      search(layer, head, k[static_cast<std::size_t>(layer)]);
      choose(layer, head, queries, first_rows(layer));
    }
  });
  const double seconds = searching.seconds();
  stats.search_seconds += seconds;
  times(layer).search += seconds;
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
    for (std::int64_t i = 0; i < step.count(); ++i) stats.rows_retrieved += step.selector.rows(i);
  }
  times(layer).attend += attending.seconds();
}

}  // namespace topkv
