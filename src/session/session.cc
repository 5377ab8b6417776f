#include "topkv/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "index/common/index_factory.h"
#include "src/context/attention_step.h"
#include "src/session/session_state.h"
#include "topkv/error.h"

namespace topkv {
namespace {

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

void check_guarantee(const RetrievalOptions& options, const AttentionShape& shape,
                     const Device& device) {
  if (!options.guarantee) return;
  const auto within = [](double x) { return x > 0 && x < 1; };
  const auto& [epsilon, delta] = *options.guarantee;
  if (!within(epsilon) || !within(delta)) {
    throw InvalidArgument(
        fmt::format("guarantee is epsilon {}, delta {}; both must be above 0 and below 1: the "
                    "largest error, and the probability of a larger one",
                    epsilon, delta));
  }
  const auto refuse = [](const std::string& what, const char* advice) {
    throw InvalidArgument(fmt::format("guarantee does not go with {}; {}", what, advice));
  };
  if (options.mass || options.error) {
    refuse(options.mass ? "mass" : "error",
           "it decides itself how many rows are enough: leave one of them out");
  }
  if (!options.tail.empty() && options.tail != no_tail) {
    refuse("tail '" + options.tail + "'",
           "a sample stands for the rows that are not found: leave the tail out");
  }
  if (shape.chunk_len > 0)
    refuse("dual chunk attention", "its bound would be that of each chunk alone: leave it out");
  if (shape.keys_are_values) {
    refuse("keys that are values",
           "a model drops a part of what it attends there, so that the bound would be that of "
           "another vector: leave it out");
  }
  if (device.is_cuda())
    refuse("a CUDA device", "the host alone samples rows: use the device cpu, or leave it out");
}

void check_measures_attention(const RetrievalOptions& options, const AttentionShape& shape,
                              const Device& device) {
  if (!options.measure_attention) return;
  const auto refuse = [](const char* what, const char* advice) {
    throw Unsupported(fmt::format("measure_attention (--cite) with {}; {}", what, advice));
  };
  if (device.is_cuda()) {
    refuse("a CUDA device",
           "the host alone measures attention so far: use the device cpu, or leave it out");
  }
  if (options.mass || options.error || options.guarantee) {
    refuse(options.mass    ? "mass"
           : options.error ? "error"
                           : "guarantee",
           "only a fixed number of rows is measured: leave one of them out");
  }
  if (shape.chunk_len > 0)
    refuse("dual chunk attention", "a token has several queries there: leave it out");
  if (shape.indexer)
    refuse("a trained indexer", "its choice of rows is not measured: leave it out");
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

Session::State::State(const std::shared_ptr<const Context>& ctx, RetrievalOptions opts,
                      const Device& where)
    : core(ctx, *ctx->segment_, std::move(opts), where),
      heads(core),
      own_codes(core, core.spec.scans() && core.spec.tail && !core.spec.has_row_rules),
      window(core),
      own_rows(core, heads, own_codes, core.spec.scans()),
      indexer(core),
      chunks(core),
      turns(core),
      past(ctx->segment_->token_index, ctx->tokens()),
      figures_before(static_cast<std::size_t>(core.shape.layers)) {
  const SessionShape& spec = core.spec;
  if (core.options.measure_attention) {
    mass = std::make_unique<PositionMass>(core);
    core.mass = mass.get();
  }
  if (spec.scans()) {
    scan = std::make_unique<ScanSource>(core, heads, own_rows, own_codes);
    beyond = {scan.get(), &own_rows};
  } else {
    search = std::make_unique<SearchSource>(core, heads, core.attends_own() ? &own_rows : nullptr);
    if (core.attends_own()) beyond.push_back(&own_rows);
    beyond.push_back(search.get());
  }
  if (spec.has_row_rules) {
    RoundsSource& source = scan ? static_cast<RoundsSource&>(*scan) : *search;
    ruled = std::make_unique<RuledSource>(core, heads, own_rows, source);
    beyond = {ruled.get()};
  }
  if (core.options.guarantee) {
    guaranteed = std::make_unique<GuaranteedSource>(core, heads, own_rows, *search);
    beyond = {guaranteed.get()};
  }
  if (spec.tail && (search || ruled)) host_estimate = &estimate;
  // A step under a rule waits for its lists.
  if (scan && !ruled && core.backend.async != nullptr)
    async_stepper = std::make_unique<AsyncStepper>(core, *scan, own_rows);
}

std::int64_t Session::State::most_alike() const {
  if (core.device.is_cuda() || core.shape.chunk_len > 0 || core.spec.has_row_rules) return 1;
  if (mass) return 1;  // tokens that are taken back would have been counted
  for (const SegmentIndex* index : core.indices) {
    if (index != nullptr && index->spec.factory().traits().chooses_for == ChoosesFor::question)
      return 1;
  }
  return std::min(few_step_tokens, own_codes.tokens_until_due());
}

PastTokens& Session::past_tokens() { return state_->past; }
std::unique_ptr<DraftReading>& Session::draft_reading() { return state_->draft_reading; }
void Session::count_draft_bytes(std::int64_t bytes) { state_->core.stats.draft_bytes = bytes; }
std::int64_t Session::most_alike() const { return state_->most_alike(); }

void Session::State::count_rows_of_device() {
  if (!core.spec.row_copy) return;
  const auto lock = core.device.compute()->lock();
  const std::int64_t rows = core.backend.async->rows_attended();
  core.stats.rows_retrieved += (rows - rows_of_device) * core.shape.group();
  rows_of_device = rows;
}

void Session::State::check_next_step(const AttentionStep& step, std::int64_t session_index) const {
  with_session_in_errors(session_index, [&] {
    const bool reads = step.kv_count() == 0;
    check_chunks(core.shape, step, core.position(step.layer),
                 reads ? std::min(step.tokens, most_step_tokens) : step.tokens);
    if (!reads) check_turn(step.layer, step.tokens);
  });
}

void Session::State::check_turn(std::int64_t layer, std::int64_t tokens) const {
  const std::int64_t first = core.shape.first_attention();
  const std::int64_t had = core.own->tokens(first);
  const std::int64_t chooser =
      core.shape.has_indexer(layer) ? core.shape.indexer_layer_of(layer) : layer;
  for (const std::int64_t before : {first, core.shape.row_layer_of(layer), chooser}) {
    const std::int64_t most = core.own->tokens(before);
    if (layer == before || core.own->tokens(layer) + tokens <= most) continue;
    throw InvalidArgument(fmt::format(
        "attend: layer {} holds {} tokens of the session and gets {} more, beyond the {} "
        "of layer {}; give each layer the same tokens, layer {} first",
        layer, core.own->tokens(layer), tokens, most, before, before));
  }
  for (std::int64_t l = 0; layer == first && l < core.shape.layers; ++l) {
    const std::int64_t ahead = core.own->tokens(l) - had;
    if (ahead == 0 || (ahead == tokens && !core.shape.is_attention(l))) continue;
    throw InvalidArgument(
        fmt::format("attend: layer {} gets new tokens while layer {} holds {} of its {}; give each "
                    "layer the same tokens, layer {} first",
                    first, l, core.own->tokens(l), had, first));
  }
}

void Session::State::check_between_steps(std::string_view what) const {
  for (std::int64_t layer = 1; layer < core.shape.layers; ++layer) {
    if (core.own->tokens(layer) == core.own->tokens(0)) continue;
    throw InvalidArgument(
        fmt::format("{} was called during a step: layer {} holds {} tokens of the session, "
                    "layer 0 {}; call it between steps",
                    what, layer, core.own->tokens(layer), core.own->tokens(0)));
  }
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
  at_least(options.device_rows, 0, "device_rows");
  check_rules(options);
  check_guarantee(options, context->shape(), device);
  check_measures_attention(options, context->shape(), device);
  if (options.guarantee) options.tail = no_tail;
  const IndexSpec index(options.index);
  index.check_index();
  const std::string typed = std::exchange(options.index, index.text());
  for (std::int64_t layer = 0; layer < context->shape().layers; ++layer) {
    if (!context->shape().attends_all(layer)) continue;
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
  if (options.tail.empty()) options.tail = no_tail;  // no layer searches
  state_ = std::make_unique<State>(std::move(context), std::move(options), device);
}

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

void Session::attend(const AttentionStep& step) {
  Session* const one = this;
  attend_together({&one, 1}, step);
}

void Session::check_together(std::span<Session* const> sessions) {
  if (sessions.empty()) throw InvalidArgument("attend_together: no sessions; give at least one");
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    if (sessions[i] == nullptr)
      throw InvalidArgument(fmt::format("attend_together: session {} is null", i));
    const SessionCore& s = sessions[i]->state_->core;
    s.check_usable();
    if (std::find(sessions.begin(), sessions.begin() + static_cast<std::ptrdiff_t>(i),
                  sessions[i]) != sessions.begin() + static_cast<std::ptrdiff_t>(i)) {
      throw InvalidArgument(fmt::format(
          "attend_together: session {} is given twice; give each session once, or a fork of it",
          i));
    }
    const SessionCore& first = sessions[0]->state_->core;
    if (s.device.compute() == first.device.compute() &&
        s.segments[0].states == first.segments[0].states)
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
  const AttentionShape& shape = one.core.shape;
  check_step(shape, step, std::ssize(sessions));
  const bool reads = step.kv_count() == 0;
  if (!reads && step.kv_count() != step.tokens) {
    throw InvalidArgument(
        fmt::format("attend: K and V of {} of the {} tokens of a session's step; give K and V of "
                    "all its tokens, or of none to read only",
                    step.kv_count(), step.tokens));
  }
  one.firsts.clear();
  for (const Session* session : sessions)
    one.firsts.push_back(session->state_->core.position(step.layer));
  check_index_tensors(shape, step, one.firsts);
  for (std::size_t i = 0; i < sessions.size(); ++i)
    sessions[i]->state_->check_next_step(step,
                                         sessions.size() > 1 ? static_cast<std::int64_t>(i) : -1);
  take_step(sessions, step);
}

void Session::advance(std::int64_t layer, std::int64_t tokens, std::span<const float> state) {
  state_->check_advance(layer, tokens);
  state_->core.own->advance(layer, tokens, state);
  state_->count_states();
}

void Session::advance(std::int64_t layer, std::int64_t tokens, std::shared_ptr<StateMemory> state) {
  state_->check_advance(layer, tokens);
  state_->core.own->advance(layer, tokens, std::move(state));
  state_->count_states();
}

std::shared_ptr<const StateMemory> Session::state_memory(std::int64_t layer) const {
  const SessionCore& core = state_->core;
  std::shared_ptr<const StateMemory> own = core.own->state(layer).memory();
  return own == nullptr ? core.context->state_memory(layer) : own;
}

std::shared_ptr<StateMemory> Session::spare_state(std::int64_t layer) {
  return state_->core.own->take_spare(layer);
}

void Session::State::check_advance(std::int64_t layer, std::int64_t tokens) const {
  core.check_usable();
  const LayerStates& own = *core.own;
  own.check_recurrent(layer);
  // It goes ahead of the layers of attention, or follows them.
  const std::int64_t first = own.tokens(core.shape.first_attention());
  if (own.tokens(layer) > first ||
      (own.tokens(layer) < first && own.tokens(layer) + tokens > first)) {
    throw InvalidArgument(
        fmt::format("advance: layer {} holds {} tokens of the session and gets {} more, while "
                    "layer {} holds {}; give each layer the same tokens",
                    layer, own.tokens(layer), tokens, core.shape.first_attention(), first));
  }
}

std::span<const float> Session::state(std::int64_t layer) const {
  const SessionCore& core = state_->core;
  const std::span<const float> own = core.own->values(layer);
  return own.empty() ? core.context->state(layer) : own;
}

void Session::snapshot() {
  state_->check_between_steps("snapshot");
  state_->core.own->snapshot();
  state_->count_states();
}

std::int64_t Session::reachable(std::int64_t own_tokens) const {
  return state_->core.own->reachable(own_tokens);
}

void Session::truncate(std::int64_t own_tokens) {
  State& s = *state_;
  s.settle();
  s.core.check_usable();
  for (std::int64_t layer = 0; layer < s.core.shape.layers; ++layer) {
    if (own_tokens >= 0 && own_tokens <= s.core.own->tokens(layer)) continue;
    throw InvalidArgument(fmt::format("truncate to {} own tokens; layer {} of the session has {}",
                                      own_tokens, layer, s.core.own->tokens(layer)));
  }
  s.core.own->check_reachable(own_tokens);
  s.turns.end();
  s.past.truncate(own_tokens);
  if (s.mass) s.mass->truncate(s.core.context->tokens() + own_tokens);
  for (std::int64_t layer = 0; layer < s.core.shape.layers; ++layer) {
    if (s.core.own->tokens(layer) > own_tokens) s.roll_back(layer, own_tokens);
  }
}

std::int64_t Session::tokens() const { return state_->core.context->tokens() + own_tokens(); }
std::int64_t Session::tokens(std::int64_t layer) const {
  const SessionCore& core = state_->core;
  if (layer >= 0 && layer < core.shape.layers) return core.position(layer);
  throw InvalidArgument(
      fmt::format("layer {} of a session with {} layers", layer, core.shape.layers));
}
std::int64_t Session::own_tokens() const { return state_->core.own->tokens(0); }
const Context& Session::context() const { return *state_->core.context; }
const RetrievalOptions& Session::options() const { return state_->core.options; }
const Device& Session::device() const { return state_->core.device; }
const std::vector<StepTimes>& Session::step_times() const {
  state_->settle();
  return state_->core.step_times;
}
const SessionStats& Session::stats() const {
  state_->settle();
  state_->count_rows_of_device();
  return state_->core.stats;
}
std::vector<double> Session::attention_by_position() const {
  if (!state_->mass) {
    throw InvalidArgument(
        "attention_by_position: the session does not measure attention; open it with "
        "measure_attention");
  }
  return state_->mass->sums(tokens());
}
void Session::reset_attention() {
  if (state_->mass) state_->mass->truncate(0);
}
std::vector<PrefillShare> Session::turn_shares() const { return state_->turns.shares(); }
std::vector<TailFigures> Session::tail_figures() const {
  std::vector<TailFigures> figures = state_->figures_before;
  const auto lock = state_->core.device.compute()->lock();
  for (std::size_t layer = 0; layer < figures.size(); ++layer)
    figures[layer] += state_->core.backend.inputs->tail_figures(static_cast<std::int64_t>(layer));
  return figures;
}

}  // namespace topkv
