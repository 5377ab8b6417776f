// A session's step.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>

#include "src/core/io/faults.h"
#include "src/core/math/convert.h"
#include "src/core/threads/stopping.h"
#include "src/core/threads/stopwatch.h"
#include "src/session/session_state.h"
#include "topkv/error.h"

namespace topkv {
namespace {

// Memory of the searches of a step: what is kept of one row that was found, in all places until it
// is attended, and what may be kept at a time.
constexpr std::int64_t search_bytes = 64;
constexpr std::int64_t search_memory = std::int64_t{256} << 20;

// Sessions whose steps a device is given before threads attend what it lists: enough for a scan of
// several, few enough that there is something left to begin with meanwhile.
constexpr std::size_t begun_together = 4;

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

}  // namespace

/// use(rows): those of each segment that the pass meets; one span per KV head.
template <class Use>
void Session::State::each_segment(std::int64_t layer, const Use& use) {
  for (const Segment& segment : segments) {
    const PositionRange range = seen_of(segment, layer);
    spans.clear();
    for (std::int64_t head = 0; head < shape.kv_heads; ++head)
      spans.push_back({segment.rows(layer, head).part(range), segment.first + range.begin});
    use(std::span<const RowSpan>(spans));
  }
}

void Session::State::load(PositionRange layers) {
  sees = all_positions;
  const auto lock = device.compute()->lock();
  for (std::int64_t layer = layers.begin; layer < layers.end; ++layer) {
    spans.clear();
    for (std::int64_t head = 0; head < shape.kv_heads; ++head)
      spans.push_back({segments.back().rows(layer, head), segments.back().first});
    backend->load(layer, spans);
  }
  backend->loaded();
}

/// The way of a step: its tokens' rows join the session's, they attend what is seen exactly, then
/// the rows that are found among the rest. While these are searched the device is free for others.
/// Several sessions go it together, some at a time: a device scans for these at once, and while
/// threads attend what it lists, this one has it begin with the next.
void Session::State::step(std::span<SessionStep> parts) {
  ComputeDevice& compute = *parts[0].session->device.compute();
  const Stopwatch whole;
  std::span<SessionStep> some = parts.first(std::min(parts.size(), begun_together));
  DeviceLock lock = compute.lock();
  begin(some);
  take_all(some);
  for (std::size_t next = some.size(); next < parts.size(); next += some.size()) {
    lock = {};
    const std::span<SessionStep> others =
        parts.subspan(next, std::min(parts.size() - next, begun_together));
    attend_scanned(some, [&] {
      lock = compute.lock();
      begin(others);
      take_all(others);
      lock = {};
    });
    some = others;
  }
  lock = {};
  attend_scanned(some, [] {});
  if (parts.size() > 1) search_together(parts);
  for (const SessionStep& part : parts) {
    if (part.searched) part.session->retrieve(part);
  }
  lock = compute.lock();
  for (const SessionStep& part : parts) part.session->finish(part);
  for (const SessionStep& part : parts) {
    SessionStats& stats = part.session->stats;
    stats.steps += part.step.tokens;
    stats.attend_seconds += std::max(
        0.0, whole.seconds() / static_cast<double>(parts.size()) - part.session->searching(part));
  }
}

/// Seconds of the step that were search, or no part of it.
double Session::State::searching(const SessionStep& part) const {
  return stats.search_seconds + measuring_seconds - part.searching_before;
}

/// Gives the device the steps of some sessions, and has it begin with their scans, or choices.
void Session::State::begin(std::span<SessionStep> parts) {
  const Stopwatch watch;
  for (SessionStep& part : parts) begin(part);
  // A CUDA device's scan is only begun here.
  const bool cuda = parts[0].session->device.is_cuda();
  const Stopwatch scanning;
  scan(parts);
  const double scanned = cuda ? 0.0 : scanning.seconds();
  for (SessionStep& part : parts) part.session->begin_choice(part);
  for (const SessionStep& part : parts) {
    State& of = *part.session;
    const auto share = 1 / static_cast<double>(parts.size());
    of.times(part.step.layer).q_out += (watch.seconds() - scanned) * share;
    of.count_search(part.step.layer, scanned * share);
  }
}

void Session::State::begin(SessionStep& part) {
  reach_fault("session.begin");
  State& of = *part.session;
  const AttentionStep& step = part.step;
  part.searching_before = of.stats.search_seconds + of.measuring_seconds;
  part.scanned = 0;
  part.found_rows = false;
  const std::int64_t first = of.position(step.layer) + part.skipped;
  part.searched = of.searches(step.layer, first + step.tokens);
  const std::int64_t d = of.shape.head_dim;
  part.queries = {nullptr, step.tokens, of.shape.q_heads * d, d, first};
  of.backend->begin(step, first, of.sees);
}

/// Waits for what a step is given.
void Session::State::take(SessionStep& part) {
  Lap lap;
  part.given = backend->wait_for_inputs();
  part.queries.data = part.given.q;
  lap(times(part.step.layer).q_out);
  if (!part.searched) return;
  part.found = backend->host_partial_buffer();
  std::fill_n(part.found.lse, part.found.heads, empty_lse);
}

/// The same; rows join the session's, and the device begins with what is attended exactly.
void Session::State::take_all(std::span<SessionStep> parts) {
  for (SessionStep& part : parts) {
    State& of = *part.session;
    of.take(part);
    with_session_in_errors(part.session_index, [&] { of.append(part); });
    Lap lap;
    of.attend_exact(part.step.layer);
    lap(of.times(part.step.layer).window);
  }
}

void Session::State::finish(const SessionStep& part) {
  Lap lap;
  if (part.searched) {
    backend->add(part.found);
    if (host_estimates()) backend->add_tail(estimate.view(), noise.data());
  }
  reach_fault("session.finish");
  backend->finish(part.step);
  lap(times(part.step.layer).merge);
}

void Session::State::attend_exact(std::int64_t layer) {
  each_segment(layer, [&](std::span<const RowSpan> rows) { backend->attend(layer, rows); });
}

/// x: [tokens, heads, head_dim], which are the step's tokens.
void Session::State::check_finite(const SessionStep& part, std::string_view what, const float* x,
                                  std::int64_t tokens, std::int64_t heads) const {
  const std::int64_t d = shape.head_dim;
  const std::int64_t bad = first_not_finite(x, tokens * heads * d);
  if (bad < 0) return;
  throw InvalidArgument(fmt::format("{} of layer {}, {} head {}, position {} is not finite", what,
                                    part.step.layer, what == "q" ? "query" : "KV", bad / d % heads,
                                    part.queries.first + bad / d / heads));
}

/// Takes the next tokens of a layer, unless K and V have none.
void Session::State::append(const SessionStep& part) {
  Lap lap;
  const std::int64_t layer = part.step.layer;
  const DecodeBackend::Step& given = part.given;
  check_finite(part, "q", given.q, part.step.tokens, shape.q_heads);
  if (const std::int64_t rows = given.k.tokens; rows > 0) {
    check_finite(part, "K", static_cast<const float*>(given.k.data), rows, shape.kv_heads);
    check_finite(part, "V", static_cast<const float*>(given.v.data), rows, shape.kv_heads);
    own->append(layer, given.k, given.v);
  }
  lap(times(layer).append);
}

/// Rows to find lie between the sinks and the window of the last token, which is at end - 1.
bool Session::State::searches(std::int64_t layer, std::int64_t end) const {
  const PositionRange between{step_spec.sinks, end - step_spec.window};
  return step_spec.retrieves(layer) && between.within(sees).size() > 0;
}

/// How many tokens are retrieved for at a time. What a scan gives is small; with a large k, what a
/// search gives is large.
std::int64_t Session::State::tokens_at_once(const SessionStep& part) const {
  return step_spec.codes ? backend->scan_tokens(first_rows(part.step.layer))
                         : tokens_searched(part);
}

std::int64_t Session::State::tokens_searched(const SessionStep& part) const {
  const std::int64_t rows =
      std::min(most_rows(part.step.layer), part.queries.first + part.queries.tokens);
  return std::max<std::int64_t>(1, search_memory / (shape.q_heads * search_bytes * rows));
}

/// Of [tokens x q_heads] heads those of some tokens.
PartialView Session::State::of_tokens(PartialView all, std::int64_t first,
                                      std::int64_t tokens) const {
  return all.part(first * shape.q_heads, tokens * shape.q_heads);
}

TailParts Session::State::estimated(PartialView found, std::int64_t first, std::int64_t tokens) {
  return {of_tokens(estimate.view(), first, tokens), found, noise.data() + first * shape.q_heads};
}

/// Searches for the queries, attends what is found and merges it into part.found, some tokens at a
/// time.
void Session::State::retrieve(const SessionStep& part) {
  const std::int64_t layer = part.step.layer;
  const TokenQueries& queries = part.queries;
  if (host_estimates()) {
    estimate.reset(queries.tokens * shape.q_heads, shape.head_dim);
    noise.resize(static_cast<std::size_t>(queries.tokens * shape.q_heads));
  }
  if (step_spec.has_row_rules) {
    const Stopwatch waiting;  // for scans too, where there are some
    const auto lock = device.compute()->lock();
    exact_part = backend->exact_part();
    (step_spec.codes ? times(layer).search : times(layer).window) += waiting.seconds();
    if (step_spec.codes) stats.search_seconds += waiting.seconds();
  }
  const std::int64_t tokens = std::min(tokens_at_once(part), queries.tokens);
  for (std::int64_t t = 0; t < queries.tokens; t += tokens) {
    check_stop();
    const TokenQueries block = queries.part(t, std::min(tokens, queries.tokens - t));
    if (step_spec.codes) {
      if (t > 0)  // the first were with all sessions'
        scan_and_attend(part, t, block.tokens, first_rows(layer));
      if (step_spec.has_row_rules) {
        for (std::int64_t i = 0; i < block.tokens; ++i) scan_more(part, t + i, i);
      } else {
        const PartialView found = of_tokens(part.found, t, block.tokens);
        attend_between(layer, block, found);
        attend_own(layer, block, found);
      }
    } else {
      const PartialView found = of_tokens(part.found, t, block.tokens);
      const Searched searched{this, block};
      if (!part.found_rows) search_all(layer, {&searched, 1}, part.chosen);
      if (attends_own()) attend_own(layer, block, found);
      attend_found(layer, block, found);
      if (host_estimates()) {
        const TailParts out = estimated(found, t, block.tokens);
        attend_rest(layer, out);
        if (step_spec.has_row_rules)
          search_more(layer, block, of_tokens(exact_part, t, block.tokens), out);
      }
    }
    if (options.measure_recall) measure_recall(layer, block, part.chosen);
  }
}

}  // namespace topkv
