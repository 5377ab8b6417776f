#include "topkv/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "index/exact_index.h"
#include "src/context/attention_step.h"
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

}  // namespace

Session::State::State(std::shared_ptr<const Context> ctx, RetrievalOptions opts,
                      const Device& where)
    : context(std::move(ctx)),
      options(std::move(opts)),
      device(where),
      shape(context->shape()),
      resident(session_window(options, context->tokens())),
      k(options.k.resolve(shape.layers)),
      own(shape, context->dtype(), options.capacity, options.memory_budget, "session"),
      step_times(static_cast<std::size_t>(shape.layers)),
      heads(static_cast<std::size_t>(shape.kv_heads)) {
  if (device.is_cuda()) open_on_device();
}

/// Layer 0 takes new tokens when every layer has the last ones; the others follow it.
void Session::State::check_turn(std::int64_t layer, std::int64_t tokens) const {
  const std::int64_t first = own.size(0);
  if (layer > 0 && own.size(layer) + tokens > first) {
    throw InvalidArgument(fmt::format(
        "attend: layer {} holds {} tokens of the session and gets {} more, beyond the {} "
        "of layer 0; give each layer the same tokens, layer 0 first",
        layer, own.size(layer), tokens, first));
  }
  for (std::int64_t l = 1; layer == 0 && l < shape.layers; ++l) {
    if (own.size(l) == first) continue;
    throw InvalidArgument(
        fmt::format("attend: layer 0 gets new tokens while layer {} holds {} of its {}; give each "
                    "layer the same tokens, layer 0 first",
                    l, own.size(l), first));
  }
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

/// Takes the next tokens of a layer, all contiguous, unless K and V have none; refuses them as they
/// are.
void Session::State::append(std::int64_t layer, const float* q, std::int64_t tokens,
                            const TensorView& keys, const TensorView& values) {
  check_finite(layer, "q", q, tokens, shape.q_heads);
  if (keys.tokens == 0) return;
  check_finite(layer, "K", static_cast<const float*>(keys.data), keys.tokens, shape.kv_heads);
  check_finite(layer, "V", static_cast<const float*>(values.data), keys.tokens, shape.kv_heads);
  own.append(layer, keys, values);
}

/// Finds rows between the sinks and each query's window.
void Session::State::search(std::int64_t layer, std::int64_t head, const TokenQueries& queries) {
  HeadStep& step = heads[static_cast<std::size_t>(head)];
  const std::int64_t group = shape.group();
  const std::int64_t d = shape.head_dim;
  const std::int64_t count = queries.tokens * group;
  step.queries.resize(static_cast<std::size_t>(count * d));
  step.context_allowed.resize(static_cast<std::size_t>(count));
  step.own_allowed.resize(static_cast<std::size_t>(count));
  const std::int64_t n = context->tokens();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t token = i / group;
    const float* q = queries.data + token * queries.token_stride +
                     (head * group + i % group) * queries.head_stride;
    std::copy(q, q + d, &step.queries[static_cast<std::size_t>(i * d)]);
    const std::int64_t end = resident.begin(queries.first + token);
    step.context_allowed[static_cast<std::size_t>(i)] = {resident.sinks, std::min(end, n)};
    step.own_allowed[static_cast<std::size_t>(i)] = {std::max<std::int64_t>(0, resident.sinks - n),
                                                     end - n};
  }
  reach_fault("session.search");
  ExactIndex own_keys;  // holds nothing but where they are
  own_keys.build({});
  own_keys.add(own.rows(layer, head).keys(), {});
  step.selector.select(context->index(options.index, layer, head), own_keys, step.queries.data(),
                       count, d, step.context_allowed, step.own_allowed,
                       k[static_cast<std::size_t>(layer)], group, options.select_by);
}

void Session::State::measure_recall(std::int64_t layer) {
  const Stopwatch measuring;
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) measure_recall(layer, head);
  measuring_seconds += measuring.seconds();
}

/// Compares the context's index with exact search on the queries of the last search.
void Session::State::measure_recall(std::int64_t layer, std::int64_t head) {
  const HeadStep& step = heads[static_cast<std::size_t>(head)];
  const auto count = static_cast<std::int64_t>(step.context_allowed.size());
  const QueryBlock queries{step.queries.data(), count, shape.head_dim, step.context_allowed};
  SearchResult wanted;
  SearchResult found;
  context->index("exact", layer, head).search(queries, k[static_cast<std::size_t>(layer)], wanted);
  context->index(options.index, layer, head)
      .search(queries, k[static_cast<std::size_t>(layer)], found);
  for (std::int64_t q = 0; q < count; ++q) {
    std::vector<std::int64_t> have(found.positions(q).begin(), found.positions(q).end());
    std::sort(have.begin(), have.end());
    for (const std::int64_t position : wanted.positions(q)) {
      ++stats.exact_rows;
      stats.exact_rows_found += std::binary_search(have.begin(), have.end(), position);
    }
  }
}

/// Rows to find lie between the sinks and the window of the last token, which is at end - 1.
bool Session::State::searches(std::int64_t layer, std::int64_t end) const {
  return retrieves(layer) && end - resident.window > resident.sinks;
}

/// Searches for the queries, attends what is found and merges it into `out`, some tokens at a time:
/// with a large k, what a search gives is large.
void Session::State::retrieve(std::int64_t layer, const TokenQueries& queries, PartialView out) {
  const std::int64_t end = queries.first + queries.tokens;
  const std::int64_t rows = std::min(k[static_cast<std::size_t>(layer)], end);
  const std::int64_t tokens = std::clamp<std::int64_t>(
      search_memory / (shape.q_heads * search_bytes * rows), 1, queries.tokens);
  for (std::int64_t t = 0; t < queries.tokens; t += tokens) {
    TokenQueries block = queries;
    block.data += t * queries.token_stride;
    block.first += t;
    block.tokens = std::min(tokens, queries.tokens - t);
    search_all(layer, block);
    if (options.measure_recall) measure_recall(layer);
    const std::int64_t before = t * shape.q_heads;
    attend_found(layer, block,
                 {out.out + before * out.head_dim, out.lse + before, block.tokens * shape.q_heads,
                  out.head_dim});
  }
}

void Session::State::search_all(std::int64_t layer, const TokenQueries& queries) {
  const Stopwatch searching;
  parallel_for(shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) search(layer, head, queries);
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
  const std::int64_t group = shape.group();
  const std::int64_t d = shape.head_dim;
  const float scale = shape.softmax_scale();
  // One task per query head: with few KV heads there would be too few tasks for the cores.
  const std::int64_t per_head = queries.tokens * group;
  for (HeadStep& step : heads) {
    step.retrieved.reset(per_head, d);
  }
  parallel_for(shape.kv_heads * per_head, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t head = task / per_head;
      const std::int64_t i = task % per_head;
      HeadStep& step = heads[static_cast<std::size_t>(head)];
      const Selection& selection = step.selector.of(i);
      const float* q = &step.queries[static_cast<std::size_t>(i * d)];
      const std::int64_t at = (i / group) * shape.q_heads + head * group + i % group;
      const PartialView target{out.out + at * d, out.lse + at, 1, d};
      const PartialView part{step.retrieved.view().out + i * d, step.retrieved.view().lse + i, 1,
                             d};
      const auto take = [&](const RowsView& rows, const std::vector<std::int64_t>& positions) {
        if (positions.empty()) return;
        attend_rows(q, rows, positions, scale, part, shape.softcap);
        merge(target, part);
      };
      take(context->rows(layer, head), selection.context);
      take(own.rows(layer, head), selection.own);
    }
  });
  for (const HeadStep& step : heads) {
    for (std::int64_t i = 0; i < per_head; ++i) {
      const Selection& selection = step.selector.of(i);
      stats.rows_retrieved +=
          static_cast<std::int64_t>(selection.context.size() + selection.own.size());
    }
  }
  times(layer).attend += attending.seconds();
}

void Session::State::step(const AttentionStep& step) {
  const Stopwatch whole;
  const double before = stats.search_seconds + measuring_seconds;
  if (on_device) {
    device_step(step);
  } else {
    host_step(step);
  }
  stats.steps += step.tokens;
  stats.attend_seconds += whole.seconds() - (stats.search_seconds + measuring_seconds - before);
}

/// Forgets the layer's own tokens from number `count` on.
void Session::State::take_back(std::int64_t layer, std::int64_t count) {
  own.shrink(layer, count);
  if (!on_device) return;
  try {
    load_on_device(layer);
  } catch (...) {  // a device that no longer works
    failed = true;
    throw;
  }
}

void Session::State::check_usable() const {
  if (!failed) return;
  throw InvalidArgument(
      "this session lost its window when its device reported an error; make another one over the "
      "context");
}

Session::Session(std::shared_ptr<const Context> context, RetrievalOptions options,
                 const Device& device) {
  if (!context) throw InvalidArgument("a session needs a context; got none");
  const auto at_least = [](std::int64_t value, std::int64_t least, const char* what) {
    if (value < least)
      throw InvalidArgument(fmt::format("{} is {}; it must be at least {}", what, value, least));
  };
  at_least(options.window, 1, "window");
  at_least(options.sinks, 0, "sinks");
  at_least(options.dense_layers, 0, "dense_layers");
  at_least(options.capacity, 1, "capacity");
  at_least(options.memory_budget, 0, "memory_budget");
  const std::string typed = std::exchange(options.index, IndexSpec(options.index).text());
  for (std::int64_t layer = 0; layer < context->shape().layers; ++layer) {
    if (context->shape().window_of(layer) > 0) continue;
    context->index(typed, layer, 0);  // throws when the context has no such index
    break;
  }
  state_ = std::make_unique<State>(std::move(context), std::move(options), device);
}

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

Session Session::fork() const {
  state_->check_usable();
  auto state = std::make_unique<State>(state_->context, state_->options, state_->device);
  state->own.copy_from(state_->own);
  state->stats = state_->stats;
  state->step_times = state_->step_times;
  for (std::int64_t layer = 0; state->on_device && layer < state->shape.layers; ++layer)
    state->load_on_device(layer);
  return Session(std::move(state));
}

void Session::attend(const AttentionStep& step) {
  State& s = *state_;
  s.check_usable();
  check_step(s.shape, step);
  const bool reads = step.kv_count() == 0;
  if (!reads && step.kv_count() != step.tokens) {
    throw InvalidArgument(
        fmt::format("attend: K and V of {} of the {} tokens of a session's step; give those of "
                    "all of them, or of none to read only",
                    step.kv_count(), step.tokens));
  }
  if (!reads) s.check_turn(step.layer, step.tokens);
  const auto lock = s.device.compute()->lock();
  const std::int64_t q_width = s.shape.q_heads * s.shape.head_dim;
  const std::int64_t kv_width = s.shape.kv_heads * s.shape.head_dim;
  // Reading tokens do not move the window, so where they are cut matters: alike on all devices.
  constexpr std::int64_t most = SessionShape().max_tokens;
  const std::int64_t held = s.own.size(step.layer);
  const SessionStats before = s.stats;
  try {
    for (std::int64_t t = 0; t < step.tokens; t += most) {
      AttentionStep piece = step;
      piece.tokens = std::min(most, step.tokens - t);
      piece.q += t * q_width;
      piece.out += t * q_width;
      if (step.lse != nullptr) piece.lse += t * s.shape.q_heads;
      piece.kv_first = 0;
      piece.kv_tokens = reads ? 0 : piece.tokens;
      if (!reads) {
        piece.k += t * kv_width;
        piece.v += t * kv_width;
      }
      s.step(piece);
    }
  } catch (...) {
    s.stats = before;
    s.take_back(step.layer, held);
    throw;
  }
}

void Session::truncate(std::int64_t own_tokens) {
  State& s = *state_;
  s.check_usable();
  for (std::int64_t layer = 0; layer < s.shape.layers; ++layer) {
    if (own_tokens >= 0 && own_tokens <= s.own.size(layer)) continue;
    throw InvalidArgument(fmt::format("truncate to {} own tokens; layer {} of the session has {}",
                                      own_tokens, layer, s.own.size(layer)));
  }
  for (std::int64_t layer = 0; layer < s.shape.layers; ++layer) {
    if (s.own.size(layer) > own_tokens) s.take_back(layer, own_tokens);
  }
}

std::int64_t Session::tokens() const { return state_->context->tokens() + own_tokens(); }
std::int64_t Session::own_tokens() const { return state_->own.size(0); }
const Context& Session::context() const { return *state_->context; }
const RetrievalOptions& Session::options() const { return state_->options; }
const Device& Session::device() const { return state_->device; }
const std::vector<StepTimes>& Session::step_times() const { return state_->step_times; }
const SessionStats& Session::stats() const { return state_->stats; }

}  // namespace topkv
