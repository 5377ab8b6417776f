// A session's step.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "src/context/session_state.h"
#include "src/core/convert.h"
#include "src/core/faults.h"
#include "src/core/stopwatch.h"
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
/// Several sessions go it together: a device scans for all at once, and threads attend what it
/// finds for any.
void Session::State::step(std::span<Part> parts) {
  State& one = *parts[0].session;
  ComputeDevice& compute = *one.device.compute();
  const Stopwatch whole;
  auto lock = compute.lock();
  for (Part& part : parts) part.session->begin(part);
  const Released released{one.helpers};
  scan(parts);
  // The threads that wait for lists have time for what else there is to do: here for the time that
  // this one takes to have the device begin with what is attended exactly. Until then the scan is
  // not enqueued whole, and another session's may not begin.
  const bool scans_one = parts.size() == 1 && parts[0].scanned > 0 && parts[0].step.tokens == 1;
  if (scans_one) one.helpers.wake(one.helpers_for(1));
  for (Part& part : parts) part.session->take(part, !scans_one);
  if (!scans_one) lock = {};
  attend_lists(parts, scans_one ? &lock : nullptr);
  for (const Part& part : parts) {
    if (part.searched) part.session->retrieve(part);
  }
  lock = compute.lock();
  for (const Part& part : parts) part.session->finish(part);
  for (const Part& part : parts) {
    SessionStats& stats = part.session->stats;
    stats.steps += part.step.tokens;
    stats.attend_seconds += std::max(
        0.0, whole.seconds() / static_cast<double>(parts.size()) - part.session->searching(part));
  }
}

/// Seconds of the step that were search, or no part of it.
double Session::State::searching(const Part& part) const {
  return stats.search_seconds + measuring_seconds - part.searching_before;
}

void Session::State::begin(Part& part) {
  const Stopwatch watch;
  const AttentionStep& step = part.step;
  reach_fault("session.begin");
  part.scanned = 0;
  part.searching_before = stats.search_seconds + measuring_seconds;
  const std::int64_t first = position(step.layer);
  part.searched = searches(step.layer, first + step.tokens);
  const std::int64_t d = shape.head_dim;
  part.queries = {nullptr, step.tokens, shape.q_heads * d, d, first};
  backend->begin(step, first);
  times(step.layer).q_out += watch.seconds();
}

/// now: rows join the session's, and the device begins with what is attended exactly.
void Session::State::take(Part& part, bool now) {
  StepTimes& time = times(part.step.layer);
  Lap lap;
  part.given = backend->given();
  part.queries.data = part.given.q;
  lap(time.q_out);
  if (now) {
    append(part.step.layer, part.given, part.step.tokens);
    lap(time.append);
    attend_exact(part.step.layer);
    lap(time.window);
  }
  if (!part.searched) return;
  if (seen.judged) exact_part = backend->exact_part();
  part.found = backend->room();
  std::fill_n(part.found.lse, part.found.heads, empty_lse);
}

void Session::State::finish(const Part& part) {
  Lap lap;
  if (part.searched) {
    backend->add(part.found);
    if (seen.tail && !seen.codes) backend->add_tail(estimate.view(), noise.data());
  }
  reach_fault("session.finish");
  backend->finish(part.step);
  lap(times(part.step.layer).merge);
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

/// Rows to find lie between the sinks and the window of the last token, which is at end - 1.
bool Session::State::searches(std::int64_t layer, std::int64_t end) const {
  return seen.retrieves(layer) && end - seen.window > seen.sinks;
}

/// Searches for the queries, attends what is found and merges it into part.found, some tokens at a
/// time: with a large k, what a search gives is large.
void Session::State::retrieve(const Part& part) {
  const std::int64_t layer = part.step.layer;
  const TokenQueries& queries = part.queries;
  const bool estimates = seen.tail && !seen.codes;
  if (estimates) {
    estimate.reset(queries.tokens * shape.q_heads, shape.head_dim);
    noise.resize(static_cast<std::size_t>(queries.tokens * shape.q_heads));
  }
  const std::int64_t rows = std::min(most_rows(layer), queries.first + queries.tokens);
  const std::int64_t room =
      seen.codes ? backend->scan_tokens() : search_memory / (shape.q_heads * search_bytes * rows);
  const std::int64_t tokens = std::clamp<std::int64_t>(room, 1, queries.tokens);
  for (std::int64_t t = 0; t < queries.tokens; t += tokens) {
    const TokenQueries block = queries.part(t, std::min(tokens, queries.tokens - t));
    const std::int64_t before = t * shape.q_heads;
    const auto of_block = [&](PartialView of) {
      return of.part(before, block.tokens * shape.q_heads);
    };
    const PartialView found = of_block(part.found);
    if (seen.codes) {
      if (t > 0) scan_and_attend(part, t, block.tokens);  // the first were with all sessions'
      attend_between(layer, block, found);
      attend_own(layer, block, found);
    } else {
      search_all(layer, block);
      if (attends_own()) attend_own(layer, block, found);
      attend_found(layer, block, found);
      if (estimates) {
        const TailParts out{of_block(estimate.view()), found, noise.data() + before};
        attend_rest(layer, out);
        if (seen.judged) retrieve_more(layer, block, of_block(exact_part), out);
      }
    }
    if (options.measure_recall) measure_recall(layer, block);
  }
}

}  // namespace topkv
