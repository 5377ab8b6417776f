#include "topkv/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <utility>

#include "index/common/index_factory.h"
#include "src/context/attention_step.h"
#include "src/core/math/row_format.h"
#include "src/session/codes_on_device.h"
#include "src/session/selection_on_device.h"
#include "src/session/session_async.h"
#include "src/session/session_state.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Tokens that a session can come to have.
std::int64_t most_tokens(const RetrievalOptions& options, std::int64_t context_tokens) {
  std::int64_t most = 0;
  return __builtin_add_overflow(context_tokens, options.capacity, &most)
             ? std::numeric_limits<std::int64_t>::max()
             : most;
}

/// own: the index has a tail.
std::string choose_tail(const RetrievalOptions& options, bool own) {
  if (options.tail.empty()) return own ? options.index : std::string(no_tail);
  return options.tail == no_tail ? options.tail : IndexSpec(options.tail).text();
}

/// The two rules of which rows are enough.
void check_rules(const RetrievalOptions& options) {
  if (options.mass && !(*options.mass > 0 && *options.mass < 1)) {
    throw InvalidArgument(fmt::format(
        "mass is {}; it must be above 0 and below 1, the share of attention that rows are to hold",
        *options.mass));
  }
  if (options.error && !(*options.error > 0 && std::isfinite(*options.error))) {
    throw InvalidArgument(fmt::format(
        "error is {}; it must be above 0, the expected |out - dense| / |dense| that is allowed",
        *options.error));
  }
}

/// What tells the rules how good a step is.
void check_rules_have_tail(const RetrievalOptions& options) {
  if (options.tail != no_tail || (!options.mass && !options.error)) return;
  throw InvalidArgument(
      fmt::format("{} is {}, but the session has no tail to estimate the rows that are not found; "
                  "give a tail such as codes:k=16,v=8, or no {}",
                  options.mass ? "mass" : "error", options.mass ? *options.mass : *options.error,
                  options.mass ? "mass" : "error"));
}

}  // namespace

SessionShape session_shape(const AttentionShape& shape, const RetrievalOptions& options,
                           std::int64_t context_tokens) {
  const std::int64_t most = most_tokens(options, context_tokens);
  SessionShape out;
  out.attention = shape;
  for (std::int64_t& window : out.attention.sliding_window) window = std::min(window, most);
  out.window = std::min(options.window, most);
  out.sinks = std::min(options.sinks, most);
  out.dense_layers = std::min(options.dense_layers, shape.layers);
  out.most_own = options.capacity;
  out.context_tokens = context_tokens;
  return out;
}

Session::State::State(std::shared_ptr<const Context> ctx, RetrievalOptions opts,
                      const Device& where)
    : context(std::move(ctx)),
      options(std::move(opts)),
      device(where),
      shape(context->shape()),
      step_spec(session_shape(shape, options, context->tokens())),
      k(options.k.resolve(shape.layers)),
      own(std::make_shared<RowStore>(shape, context->dtype(), options.capacity,
                                     options.memory_budget, "session")),
      segments{*context->segment_, {.first = context->tokens(), .store = own}},
      indices{segments[0].find(options.index), nullptr},
      tail(segments[0].find(options.tail)),
      step_times(static_cast<std::size_t>(shape.layers)),
      figures_before(static_cast<std::size_t>(shape.layers)),
      heads(static_cast<std::size_t>(shape.kv_heads), HeadStep(segments)) {
  if (indices[0] != nullptr && !indices[0]->spec.factory().finds()) indices[1] = indices[0];
  own->use_channels(*segments[0].store, context->tokens());
  step_spec.rows = context->dtype();
  step_spec.context = segments[0].store;
  if (!device.compute()->takes_rows(context->dtype())) {
    throw InvalidArgument(
        "a session on a CUDA device reads rows in bf16, q8 and q4; the context "
        "holds " +
        context->dtype().name() + ": prefill it with kv_dtype bf16");
  }
  // With another tail, or when a group shares its rows, the host searches. For itself it does where
  // the index can have no tail: that takes no longer, and ranks rows by their keys. Where it takes
  // entries, a device may choose these.
  bool retrieves = false;
  for (std::int64_t l = 0; l < shape.layers; ++l) retrieves = retrieves || step_spec.retrieves(l);
  step_spec.tail = retrieves && options.tail != no_tail;
  step_spec.has_row_rules = step_spec.tail && (options.mass || options.error);
  const bool on_device = device.is_cuda() && !options.host_search;
  if (retrieves && can_use_scan(options) &&
      (device.is_cuda() ? on_device : IndexSpec(options.index).has_tail())) {
    step_spec.codes = upload_codes(device, shape, segments[0], *indices[0]);
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      step_spec.usual_rows = std::max(step_spec.usual_rows, first_rows(l));
      step_spec.most_rows = std::max(step_spec.most_rows, most_scanned(l));
    }
  }
  if (step_spec.codes) stats.device_index_bytes = step_spec.codes->memory();
  if (retrieves && on_device && !step_spec.codes && indices[0] != nullptr)
    step_spec.selection = upload_key_summaries(device, shape, *indices[0]);
  if (step_spec.selection) {
    stats.device_index_bytes = step_spec.selection->memory();
    for (std::int64_t l = 0; l < shape.layers; ++l) {
      const std::int64_t rows = k[static_cast<std::size_t>(l)];
      step_spec.most_entries =
          std::max(step_spec.most_entries, step_spec.selection->most_entries(l, rows));
    }
  }
  const auto lock = device.compute()->lock();
  backend = device.compute()->decode_backend(step_spec);
  if (step_spec.codes && !step_spec.has_row_rules && backend->supports_async_steps())
    async_stepper = std::make_unique<AsyncStepper>(*this);
}

/// The device's streams are waited for, which nobody may do while another thread records what it
/// gives them.
Session::State::~State() {
  async_stepper.reset();  // its thread needs no device to come to its end
  DeviceLock lock;
  try {
    lock = device.compute()->lock();
  } catch (const std::exception&) {  // a device that no longer works
  }
  backend.reset();
}

/// Layer 0 takes new tokens when every layer has the last ones; the others follow it.
void Session::State::check_turn(std::int64_t layer, std::int64_t tokens) const {
  const std::int64_t first = own->size(0);
  if (layer > 0 && own->size(layer) + tokens > first) {
    throw InvalidArgument(fmt::format(
        "attend: layer {} holds {} tokens of the session and gets {} more, beyond the {} "
        "of layer 0; give each layer the same tokens, layer 0 first",
        layer, own->size(layer), tokens, first));
  }
  for (std::int64_t l = 1; layer == 0 && l < shape.layers; ++l) {
    if (own->size(l) == first) continue;
    throw InvalidArgument(
        fmt::format("attend: layer 0 gets new tokens while layer {} holds {} of its {}; give each "
                    "layer the same tokens, layer 0 first",
                    l, own->size(l), first));
  }
}

void Session::State::take_back(std::int64_t layer, std::int64_t count) {
  own->shrink(layer, count);
  forget_coded(layer);
  try {
    load({layer, layer + 1});
  } catch (...) {  // a device that no longer works
    failed = true;
    throw;
  }
}

void Session::State::check_usable() const {
  if (!failed) return;
  throw InvalidArgument(
      "this session lost its window, or a step's results, when its device or a thread of its own "
      "failed; make another one over the context");
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
  check_rules(options);
  const IndexSpec index(options.index);
  index.check_index();
  const std::string typed = std::exchange(options.index, index.text());
  for (std::int64_t layer = 0; layer < context->shape().layers; ++layer) {
    if (context->shape().window_of(layer) > 0) continue;
    const auto has_tail = [&](const SegmentIndex* of) {
      return of != nullptr && of->layer(layer).tails[0] != nullptr;
    };
    const Segment& segment = *context->segment_;
    options.tail = choose_tail(options, has_tail(&segment.index(typed)));
    if (options.tail != no_tail && !has_tail(segment.find(options.tail))) {
      throw InvalidArgument(
          fmt::format("tail: the context has no tail '{}', only {}; name mean or an index that "
                      "codes values, such as codes:k=16,v=8, and add it with with_index",
                      options.tail, fmt::join(context->indices(), ", ")));
    }
    check_rules_have_tail(options);
    break;
  }
  state_ = std::make_unique<State>(std::move(context), std::move(options), device);
}

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

AttentionStep step_part(const AttentionShape& shape, const AttentionStep& step, std::int64_t begin,
                        std::int64_t tokens) {
  const bool reads = step.kv_count() == 0;
  AttentionStep part = step;
  part.tokens = tokens;
  for (const float** q : {&part.q, &part.q_next, &part.q_far})
    if (*q != nullptr) *q += begin * shape.q_heads * shape.head_dim;
  part.out += begin * shape.q_heads * shape.head_dim;
  if (step.lse != nullptr) part.lse += begin * shape.q_heads;
  part.kv_first = 0;
  part.kv_tokens = reads ? 0 : tokens;
  if (!reads) {
    part.k += begin * shape.kv_heads * shape.head_dim;
    part.v += begin * shape.kv_heads * shape.head_dim;
  }
  return part;
}

namespace {

/// A step of so many sessions as if it were one's: for what can be checked of it so.
AttentionStep whole_of(const AttentionStep& step, std::int64_t sessions) {
  AttentionStep whole = step;
  if (__builtin_mul_overflow(step.tokens, sessions, &whole.tokens)) {
    throw InvalidArgument(
        fmt::format("attend_together: {} tokens of {} sessions are more than 64 "
                    "bits count; give fewer",
                    step.tokens, sessions));
  }
  whole.kv_first = 0;
  whole.kv_tokens = step.kv_count() * sessions;
  return whole;
}

}  // namespace

void Session::attend(const AttentionStep& step) {
  Session* const one = this;
  attend_together({&one, 1}, step);
}

void Session::check_together(std::span<Session* const> sessions) {
  if (sessions.empty()) throw InvalidArgument("attend_together: no sessions; give at least one");
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    if (sessions[i] == nullptr)
      throw InvalidArgument(fmt::format("attend_together: session {} is null", i));
    const State& s = *sessions[i]->state_;
    s.check_usable();
    if (std::find(sessions.begin(), sessions.begin() + static_cast<std::ptrdiff_t>(i),
                  sessions[i]) != sessions.begin() + static_cast<std::ptrdiff_t>(i)) {
      throw InvalidArgument(fmt::format(
          "attend_together: session {} is given twice; give each session once, or a fork of it",
          i));
    }
    const State& first = *sessions[0]->state_;
    if (s.device.compute() == first.device.compute() &&
        s.segments[0].store == first.segments[0].store)
      continue;
    throw InvalidArgument(
        fmt::format("attend_together: session {} is over another context, or on another device, "
                    "than session 0; step it by itself",
                    i));
  }
}

void Session::attend_together(std::span<Session* const> sessions, const AttentionStep& step) {
  check_together(sessions);
  State& one = *sessions[0]->state_;
  const AttentionShape& shape = one.shape;
  check_step(shape, step);
  const bool reads = step.kv_count() == 0;
  if (!reads && step.kv_count() != step.tokens) {
    throw InvalidArgument(
        fmt::format("attend: K and V of {} of the {} tokens of a session's step; give K and V of "
                    "all its tokens, or of none to read only",
                    step.kv_count(), step.tokens));
  }
  if (sessions.size() > 1) check_step(shape, whole_of(step, std::ssize(sessions)));
  for (std::size_t i = 0; !reads && i < sessions.size(); ++i) {
    with_session_in_errors(sessions.size() > 1 ? static_cast<std::int64_t>(i) : -1,
                           [&] { sessions[i]->state_->check_turn(step.layer, step.tokens); });
  }
  for (Session* session : sessions) {
    check_chunks(shape, step, session->state_->position(step.layer),
                 reads ? std::min(step.tokens, most_step_tokens) : step.tokens);
  }
  for (Session* session : sessions) {
    if (!reads && step.layer == 0) session->state_->code_own();
  }
  const bool async = sessions.size() == 1 && one.can_step_async(step);
  for (Session* session : sessions) {
    if (async) break;
    session->state_->settle();
    session->state_->check_usable();
  }
  // With chunks sessions stand at different places of theirs: each goes its own way.
  bool chunks = false;
  for (Session* session : sessions) chunks = chunks || session->state_->meets_chunks(step);
  std::vector<State::SessionStep>& parts = one.parts;
  parts.clear();
  for (Session* session : sessions) {
    State& s = *session->state_;
    parts.push_back({.session = &s,
                     .session_index = sessions.size() > 1 ? std::ssize(parts) : -1,
                     .own_before = s.own->size(step.layer),
                     .stats_before = s.stats,
                     .times_before = s.times(step.layer)});
  }
  try {
    // Reading tokens do not move the window, so where they are cut matters: alike on all devices.
    for (std::int64_t t = 0; t < step.tokens; t += most_step_tokens) {
      for (std::int64_t i = 0; i < std::ssize(parts); ++i) {
        parts[static_cast<std::size_t>(i)].step = step_part(
            shape, step, i * step.tokens + t, std::min(most_step_tokens, step.tokens - t));
      }
      if (async) {
        one.step_async(parts[0]);
      } else if (chunks) {
        for (const State::SessionStep& part : parts) part.session->step_by_chunks(part);
      } else {
        State::step(parts);
      }
    }
  } catch (...) {
    for (const State::SessionStep& part : parts) {
      part.session->stats = part.stats_before;
      part.session->times(step.layer) = part.times_before;
      part.session->settle_without(part);
      try {
        part.session->take_back(step.layer, part.own_before);
      } catch (...) {  // which has marked it as failed
      }
    }
    throw;
  }
}

void Session::truncate(std::int64_t own_tokens) {
  State& s = *state_;
  s.settle();
  s.check_usable();
  for (std::int64_t layer = 0; layer < s.shape.layers; ++layer) {
    if (own_tokens >= 0 && own_tokens <= s.own->size(layer)) continue;
    throw InvalidArgument(fmt::format("truncate to {} own tokens; layer {} of the session has {}",
                                      own_tokens, layer, s.own->size(layer)));
  }
  for (std::int64_t layer = 0; layer < s.shape.layers; ++layer) {
    if (s.own->size(layer) > own_tokens) s.take_back(layer, own_tokens);
  }
}

std::int64_t Session::tokens() const { return state_->context->tokens() + own_tokens(); }
std::int64_t Session::own_tokens() const { return state_->own->size(0); }
const Context& Session::context() const { return *state_->context; }
const RetrievalOptions& Session::options() const { return state_->options; }
const Device& Session::device() const { return state_->device; }
const std::vector<StepTimes>& Session::step_times() const {
  state_->settle();
  return state_->step_times;
}
const SessionStats& Session::stats() const {
  state_->settle();
  return state_->stats;
}
std::vector<TailFigures> Session::tail_figures() const {
  std::vector<TailFigures> figures = state_->figures_before;
  const auto lock = state_->device.compute()->lock();
  for (std::size_t layer = 0; layer < figures.size(); ++layer)
    figures[layer] += state_->backend->tail_figures(static_cast<std::int64_t>(layer));
  return figures;
}

}  // namespace topkv
