#include "src/session/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "src/core/io/faults.h"
#include "src/core/math/convert.h"
#include "src/core/threads/stopwatch.h"
#include "src/session/attention_source.h"
#include "src/session/position_mass.h"
#include "src/session/scan_source.h"
#include "src/session/search_source.h"
#include "topkv/error.h"

namespace topkv {
namespace {

// Sessions whose steps a device is given before threads attend the rows that it lists: enough for a
// scan of several, few enough that there is something left to begin with meanwhile.
constexpr std::size_t begun_together = 4;

/// Returns the seconds of the step so far that were search, or no part of the step.
double searching(const Step& step) {
  const SessionCore& of = *step.session;
  return of.stats.search_seconds + of.measuring_seconds - step.searching_before;
}

/// Throws InvalidArgument for values of the step's tokens that are not finite. x: [tokens, heads,
/// head_dim].
void check_finite(const Step& step, std::string_view what, const float* x, std::int64_t tokens,
                  std::int64_t heads) {
  const std::int64_t d = step.session->shape.head_dim_of(step.layer());
  const std::int64_t bad = first_not_finite(x, tokens * heads * d);
  if (bad < 0) return;
  throw InvalidArgument(fmt::format("{} of layer {}, {} head {}, position {} is not finite", what,
                                    step.layer(), what.front() == 'q' ? "query" : "KV",
                                    bad / d % heads, step.queries.first + bad / d / heads));
}

/// Gives the device the steps of some sessions, and has it begin with their sources.
void begin(std::span<Step> steps) {
  const Stopwatch watch;
  for (Step& step : steps) {
    step.passes = ChunkPasses(step.session->sees);
    if (step.session->mass != nullptr) step.session->mass->begin(step);
    begin_step(step);
  }
  double scanned = 0;
  for (Step& step : steps) {
    for (AttentionSource* source : step.beyond) source->start(steps);
    if (step.scan != nullptr) scanned += step.scan->scan_seconds();
  }
  const auto share = 1 / static_cast<double>(steps.size());
  for (const Step& step : steps) {
    SessionCore& of = *step.session;
    of.times(step.layer()).q_out += (watch.seconds() - scanned) * share;
    of.count_search(step.layer(), scanned * share);
  }
}

/// Waits for the tensors of the steps. Rows join the sessions', and the device begins with the rows
/// that are attended in any case.
void take(std::span<Step> steps) {
  for (Step& step : steps) {
    SessionCore& of = *step.session;
    Stopwatch watch;
    const AttentionStep given = of.backend.inputs->wait_for_inputs();
    step.queries.data = given.q;
    of.times(step.layer()).q_out += watch.seconds();
    if (step.searched) {
      step.host = {.exact = of.backend.inputs->host_partial_buffer()};
      std::fill_n(step.host.exact.lse, step.host.exact.heads, empty_lse);
    }
    with_session_in_errors(step.session_index, [&] { append_rows(step, given); });
    watch = {};
    if (step.window != nullptr) step.window->contribute(step);
    of.times(step.layer()).window += watch.seconds();
  }
}

void finish(Step& step) {
  SessionCore& of = *step.session;
  const Stopwatch watch;
  reach_fault("session.finish");
  if (of.mass != nullptr) of.mass->take_queries(step);
  of.backend.inputs->finish(step.tensors, step.searched ? step.host : TailParts{});
  if (of.mass != nullptr) of.mass->end(step);
  of.times(step.layer()).merge += watch.seconds();
}

}  // namespace

void begin_step(Step& step) {
  reach_fault("session.begin");
  SessionCore& of = *step.session;
  step.searching_before = of.stats.search_seconds + of.measuring_seconds;
  const std::int64_t first = of.position(step.layer()) + step.skipped;
  step.joined = false;
  step.searched = of.searches(step.layer(), first + step.tensors.tokens);
  step.queries = {nullptr, step.tensors.tokens, of.shape.q_heads,
                  of.shape.head_dim_of(step.layer()), first};
  of.backend.inputs->begin(step.tensors, first, step.passes);
}

void append_rows(const Step& step, const AttentionStep& given) {
  const Stopwatch watch;
  SessionCore& of = *step.session;
  const std::int64_t layer = step.layer();
  constexpr std::array<std::string_view, query_forms> names = {"q", "q_next", "q_far"};
  for (std::int64_t i = 0; i < step.passes.size(); ++i) {
    const std::int64_t width = of.shape.q_heads * of.shape.head_dim_of(layer);
    check_finite(step, names[static_cast<std::size_t>(step.passes[i].form)],
                 given.q + i * given.tokens * width, given.tokens, of.shape.q_heads);
  }
  const std::int64_t rows = given.kv_count();
  if (of.shape.has_index_keys(layer)) {
    check_index_queries(of.shape, given, step.queries.first);
    of.own->rows().check_room(layer, rows);
    of.own->rows().index_keys().write(layer, of.own->tokens(layer), rows, given.index_k);
  }
  if (!of.shape.has_rows(layer)) {
    of.own->rows().extend(layer, rows);
  } else if (rows > 0) {
    const std::int64_t kv_heads = of.shape.kv_heads_of(layer);
    check_finite(step, "K", given.k, rows, kv_heads);
    if (given.v != nullptr) check_finite(step, "V", given.v, rows, kv_heads);
    const auto view = [&](const float* x) {
      return TensorView::tokens_first(x, DType::f32, rows, kv_heads, of.shape.head_dim_of(layer));
    };
    of.own->rows().append(layer, view(given.k), view(given.v));
  }
  of.times(layer).append += watch.seconds();
}

void run_step(std::span<Step> steps) {
  ComputeDevice& compute = *steps[0].session->device.compute();
  const Stopwatch whole;
  std::span<Step> some = steps.first(std::min(steps.size(), begun_together));
  DeviceLock lock = compute.lock();
  begin(some);
  take(some);
  for (std::size_t next = some.size(); next < steps.size(); next += some.size()) {
    lock = {};
    const std::span<Step> others =
        steps.subspan(next, std::min(steps.size() - next, begun_together));
    ScanSource::attend(some, [&] {
      lock = compute.lock();
      begin(others);
      take(others);
      lock = {};
    });
    some = others;
  }
  lock = {};
  ScanSource::attend(some, [] {});
  if (steps.size() > 1) SearchSource::search_together(steps);
  for (Step& step : steps) {
    if (!step.searched) continue;
    if (step.estimate != nullptr) {
      step.estimate->reset(step.host.exact.heads, step.host.exact.head_dim);
      step.host = step.estimate->with(step.host.exact);
    }
    step.block_tokens = step.queries.tokens;
    for (const AttentionSource* source : step.beyond)
      step.block_tokens = std::min(step.block_tokens, source->tokens_at_once(step));
    for (AttentionSource* source : step.beyond) source->contribute(step);
  }
  lock = compute.lock();
  for (Step& step : steps) finish(step);
  for (const Step& step : steps) {
    step.session->count_steps(step.layer(), step.tensors.tokens);
    step.session->stats.attend_seconds +=
        std::max(0.0, whole.seconds() / static_cast<double>(steps.size()) - searching(step));
  }
}

AttentionStep step_part(const AttentionShape& shape, const AttentionStep& step, std::int64_t begin,
                        std::int64_t tokens, std::int64_t index_keys) {
  const bool reads = step.kv_count() == 0;
  AttentionStep part = step;
  const std::int64_t q_width = shape.q_heads * shape.head_dim_of(step.layer);
  part.tokens = tokens;
  for (const float** q : {&part.q, &part.q_next, &part.q_far})
    if (*q != nullptr) *q += begin * q_width;
  part.out += begin * q_width;
  if (step.lse != nullptr) part.lse += begin * shape.q_heads;
  part.kv_first = 0;
  part.kv_tokens = reads ? 0 : tokens;
  if (!reads && step.k != nullptr) {
    const std::int64_t kv_width = shape.kv_heads_of(step.layer) * shape.head_dim_of(step.layer);
    part.k += begin * kv_width;
    if (step.v != nullptr) part.v += begin * kv_width;
  }
  if (step.index_q != nullptr) part.index_q += begin * shape.indexer->heads * shape.indexer->dim;
  if (step.index_k != nullptr) part.index_k += index_keys * shape.indexer->dim;
  if (step.index_weights != nullptr) part.index_weights += begin * shape.indexer->heads;
  return part;
}

std::int64_t completed_index_keys(const AttentionShape& shape, std::int64_t layer,
                                  std::int64_t first, std::int64_t tokens) {
  return shape.has_index_keys(layer) ? shape.indexer->completed(first, tokens) : 0;
}

}  // namespace topkv
