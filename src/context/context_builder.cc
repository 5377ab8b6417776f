// Rows on their way to a context, given as they are or in steps of a prefill.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "src/context/attention_step.h"
#include "src/context/prefill_visibility.h"
#include "src/context/segment.h"
#include "src/context/shape_difference.h"
#include "src/core/io/faults.h"
#include "src/core/math/key_bias.h"
#include "topkv/context.h"
#include "topkv/error.h"

namespace topkv {

namespace {

void check_key_bias(const AttentionShape& shape, const std::vector<float>& bias) {
  if (!bias.empty() && shape.has_two_widths()) {
    throw InvalidArgument(
        "key_bias is given, and layers with a sliding window have other heads than the other "
        "layers; expected no key_bias with such a shape");
  }
  const std::int64_t wanted = shape.layers * shape.kv_heads * 3 * shape.head_dim;
  if (!bias.empty() && std::ssize(bias) != wanted) {
    throw InvalidArgument(
        fmt::format("key_bias has {} numbers; expected {}, for {} layers of {} KV heads of {} dims",
                    bias.size(), wanted, shape.layers, shape.kv_heads, shape.head_dim));
  }
  const std::int64_t bad =
      first_bad_bias(bias.data(), std::ssize(bias) / 3 / shape.head_dim, shape.head_dim);
  if (bad >= 0) {
    throw InvalidArgument(fmt::format("key_bias[{}] is {}; expected {}", bad,
                                      bias[static_cast<std::size_t>(bad)], bias_bounds));
  }
}

}  // namespace

struct ContextBuilder::State {
  State(AttentionShape s, ContextOptions o, const Device& where)
      : shape(std::move(s)), options(std::move(o)), device(where) {
    shape.check();
    if (shape.indexer && device.is_cuda()) {
      throw Unsupported(
          "a context on a CUDA device with a trained indexer; trained indexers run on a CPU so "
          "far: "
          "give the device cpu");
    }
    visible = prefill_visibility(shape, options.attention, device.is_cuda());
    if (!device.compute()->takes_rows(options.dtype)) {
      throw InvalidArgument(
          fmt::format("a context on a CUDA device keeps its rows in bf16, q8 or q4, not {}",
                      options.dtype.name()));
    }
    check_key_bias(shape, options.key_bias);
    bias = std::make_shared<const std::vector<float>>(std::move(options.key_bias));
    states = make_states(options.capacity);
    turn.layer = shape.first_attention();
    shares.resize(static_cast<std::size_t>(shape.layers));
    if (options.keep_queries) queries = PrefillQuerySample(shape);
  }

  std::shared_ptr<LayerStates> make_states(std::int64_t capacity) const {
    auto made = std::make_shared<LayerStates>(shape, options.dtype, capacity, options.memory_budget,
                                              "context", SlidingRows::last);
    made->rows().set_bias(bias, 0);
    return made;
  }

  void check_usable() const {
    if (!states) throw InvalidArgument("this context builder was frozen; make another one");
    if (failed) {
      throw InvalidArgument(
          "this context builder lost rows when its device reported an error; make another one");
    }
  }

  /// Tokens given to the layer: on a CUDA device their rows may still be under way.
  std::int64_t tokens(std::int64_t layer) const {
    check_usable();
    return prefill && shape.is_attention(layer) ? given[static_cast<std::size_t>(layer)]
                                                : states->tokens(layer);
  }

  void check_equal_layers(std::string_view before) const {
    for (std::int64_t layer = 1; layer < shape.layers; ++layer) {
      if (tokens(layer) == tokens(0)) continue;
      throw InvalidArgument(
          fmt::format("layer 0 holds {} tokens and layer {} holds {}; append the same tokens to "
                      "every layer before {}",
                      tokens(0), layer, tokens(layer), before));
    }
    check_between_turns(before);
  }

  /// Before a step of the first layer that is attention. A recurrence may have its tokens already.
  void check_begin(const AttentionStep& step) const {
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      const std::int64_t ahead = tokens(layer) - tokens(step.layer);
      if (ahead == 0 || (!shape.is_attention(layer) && ahead == step.tokens)) continue;
      throw InvalidArgument(
          fmt::format("attend: layer {} gets {} tokens and holds {}, and layer {} holds {}; give "
                      "every layer the same tokens",
                      step.layer, step.tokens, tokens(step.layer), layer, tokens(layer)));
    }
  }

  void check_layer(std::int64_t layer) const {
    if (layer >= 0 && layer < shape.layers) return;
    throw InvalidArgument(fmt::format("layer {} of a context with {} layers", layer, shape.layers));
  }

  void check_between_turns(std::string_view before) const {
    if (turn.layer == shape.first_attention()) return;
    throw InvalidArgument(
        fmt::format("layer {} was not given the {} tokens of the layers before it; give every "
                    "layer the same tokens before {}",
                    turn.layer, turn.tokens, before));
  }

  void check_room(std::int64_t layer, std::int64_t more) const {
    if (more <= states->rows().capacity() - tokens(layer)) return;
    throw InvalidArgument(fmt::format(
        "layer {} holds {} tokens and gets {} more; this context has room for {}: make room with "
        "reserve(), or give it a larger capacity",
        layer, tokens(layer), more, states->rows().capacity()));
  }

  void check_turn(const AttentionStep& step) const {
    if (step.layer != turn.layer) {
      throw InvalidArgument(
          fmt::format("attend: layer {} is given tokens when it is layer {}'s turn; give each "
                      "layer the same tokens, layer {} first",
                      step.layer, turn.layer, shape.first_attention()));
    }
    if (step.layer == shape.first_attention()) {
      check_begin(step);
    } else if (step.tokens != turn.tokens || step.kv_first != turn.kv_first ||
               step.kv_count() != turn.kv_count()) {
      throw InvalidArgument(fmt::format(
          "attend: layer {} is given {} tokens and K and V of {} from number {} on, layer {} was "
          "given {}, {} and {}; give each layer the same tokens",
          step.layer, step.tokens, step.kv_count(), step.kv_first, shape.first_attention(),
          turn.tokens, turn.kv_count(), turn.kv_first));
    }
  }

  /// Windows and chunks are of positions in the whole text, of which a rank sees only its own rows.
  void check_visible(const AttentionStep& step) const {
    const std::int64_t window = visible[static_cast<std::size_t>(step.layer)].window.window;
    if (step.kv_count() == step.tokens) return;
    if (shape.chunk_len > 0) {
      throw InvalidArgument(fmt::format(
          "attend: attention uses chunks of {} tokens, and a step gives K and V of {} of its {} "
          "tokens; a context sharded by sequence takes attention without chunks",
          shape.chunk_len, step.kv_count(), step.tokens));
    }
    if (!shape.state_size.empty()) {
      throw InvalidArgument(
          fmt::format("attend: layers have recurrent states, and a step gives K and V of {} of its "
                      "{} tokens; a context sharded by sequence takes attention alone",
                      step.kv_count(), step.tokens));
    }
    if (window == 0) return;
    throw InvalidArgument(
        fmt::format("attend: layer {} attends a window of {} tokens, and a step gives K and V of "
                    "{} of its {} tokens; a context sharded by sequence attends all tokens",
                    step.layer, window, step.kv_count(), step.tokens));
  }

  /// What the device does. It may find that rows which were under way are lost.
  template <class Work>
  void on_device(const Work& work) {
    try {
      work();
    } catch (...) {
      failed = prefill->lost();
      throw;
    }
  }

  /// Waits for the rows under way.
  void finish() {
    if (prefill) on_device([&] { prefill->finish(); });
  }

  /// Gives back what the device keeps, too.
  void close() {
    finish();
    std::vector<PrefillShare> all = shares;
    for (std::int64_t layer = 0; prefill && layer < shape.layers; ++layer)
      all[static_cast<std::size_t>(layer)] += prefill->share(layer);
    shares = std::move(all);
    prefill.reset();
  }

  /// Moves the rows to where there is room for more.
  void move_rows(std::int64_t capacity) {
    auto larger = make_states(capacity);
    larger->rows().make_room_for_steps(chunk);  // so that no row is lost
    close();
    larger->copy_from(*states);
    states = std::move(larger);
  }

  /// A prefill for steps of so many tokens.
  void open(std::int64_t tokens) {
    if (prefill && tokens <= chunk) return;
    close();
    const std::int64_t larger = std::max(chunk, tokens);
    reach_fault("builder.open");
    states->rows().make_room_for_steps(larger);
    std::vector<std::int64_t> held;
    for (std::int64_t l = 0; l < shape.layers; ++l) held.push_back(states->rows().size(l));
    prefill = device.compute()->prefill_attention(shape, visible, larger, {states->rows()});
    chunk = larger;
    given = std::move(held);
  }

  /// The queries of a step are read behind it: on a CUDA device they are there then. (Where they
  /// were overwritten with what they gave, and by chunks, where a token has several, none are
  /// kept.)
  void keep_queries(const AttentionStep& step) {
    if (!options.keep_queries || !shape.attends_all(step.layer)) return;  // it has no index
    const bool has = step.q != nullptr && step.out != step.q && step.q_next == nullptr &&
                     step.q_far == nullptr && step.kv_count() == step.tokens;
    if (!has) return queries.lose(step.layer);
    const std::int64_t width = shape.q_heads * shape.head_dim;
    const auto read = [&](std::int64_t token, std::int64_t count, float* to) {
      device.compute()->copy_out(reinterpret_cast<const std::byte*>(step.q + token * width),
                                 count * width * static_cast<std::int64_t>(sizeof(float)), to);
    };
    try {
      queries.take(step.layer, tokens(step.layer), step.tokens, read);
    } catch (const std::exception&) {  // the rows are taken: the step has not failed
      queries.lose(step.layer);
    }
  }

  void attend(const AttentionStep& step) {
    open(step.tokens);
    on_device([&] { prefill->attend(step); });
    keep_queries(step);
    given[static_cast<std::size_t>(step.layer)] += step.kv_count();
    turn = step;
    do {
      turn.layer = (turn.layer + 1) % shape.layers;
    } while (!shape.is_attention(turn.layer));
  }

  AttentionShape shape;
  ContextOptions options;
  Device device;
  PrefillVisibility visible;
  std::shared_ptr<const std::vector<float>> bias;  // ContextOptions::key_bias
  std::shared_ptr<LayerStates> states;             // null once frozen
  std::unique_ptr<DevicePrefill> prefill;          // into its rows; null: none yet, or closed
  std::int64_t chunk = 0;                          // most tokens that a step had
  std::vector<std::int64_t> given;                 // per layer, tokens; while there is a prefill
  std::vector<PrefillShare> shares;                // per layer, of prefills that were closed
  PrefillQuerySample queries;
  AttentionStep turn;  // the last step, of the layer whose turn it is now
  bool failed = false;
};

ContextBuilder::ContextBuilder(AttentionShape shape, ContextOptions options, const Device& device)
    : state_(std::make_unique<State>(std::move(shape), std::move(options), device)) {}

ContextBuilder::~ContextBuilder() = default;
ContextBuilder::ContextBuilder(ContextBuilder&&) noexcept = default;
ContextBuilder& ContextBuilder::operator=(ContextBuilder&&) noexcept = default;

void ContextBuilder::reserve(std::int64_t tokens, std::int64_t chunk) {
  State& s = *state_;
  s.check_usable();
  const bool more = tokens > s.states->rows().capacity();
  if (!more && chunk <= 0) return;
  s.check_equal_layers("reserving");
  const auto lock = s.device.compute()->lock();
  if (more) s.move_rows(tokens);
  if (chunk > 0) s.open(chunk);
}

void ContextBuilder::append(std::int64_t layer, const TensorView& keys, const TensorView& values) {
  State& s = *state_;
  s.check_usable();
  s.check_between_turns("appending");
  const auto lock = s.device.compute()->lock();
  s.close();
  if (layer >= 0 && layer < s.shape.layers) {
    if (s.shape.has_indexer(layer)) {
      throw InvalidArgument(fmt::format(
          "append: layer {} has a trained indexer; give its tokens, with index queries and index "
          "keys, to attend()",
          layer));
    }
    s.check_room(layer, keys.tokens);
  }
  s.states->rows().append(layer, keys, values);
  s.states->follow(layer);
  s.queries.lose(layer);
}

void ContextBuilder::attend(const AttentionStep& step) {
  State& s = *state_;
  s.check_usable();
  check_step(s.shape, step);
  s.check_turn(step);
  s.check_visible(step);
  check_index_tensors(s.shape, step, std::array{s.tokens(step.layer)});
  check_chunks(s.shape, step, s.tokens(step.layer), step.tokens);
  s.check_room(step.layer, step.kv_count());
  const auto lock = s.device.compute()->lock();
  s.attend(step);
}

void ContextBuilder::advance(std::int64_t layer, std::int64_t tokens,
                             std::span<const float> state) {
  state_->check_usable();
  state_->states->advance(layer, tokens, state);
}

void ContextBuilder::advance(std::int64_t layer, std::int64_t tokens,
                             std::shared_ptr<StateMemory> state) {
  state_->check_usable();
  state_->states->advance(layer, tokens, std::move(state));
}

std::shared_ptr<const StateMemory> ContextBuilder::state_memory(std::int64_t layer) const {
  return state_->states->state(layer).memory();
}

std::shared_ptr<StateMemory> ContextBuilder::spare_state(std::int64_t layer) {
  return state_->states->take_spare(layer);
}

std::span<const float> ContextBuilder::state(std::int64_t layer) const {
  state_->check_usable();
  return state_->states->values(layer);
}

void ContextBuilder::snapshot() {
  state_->check_equal_layers("a snapshot");
  state_->states->snapshot();
}

std::int64_t ContextBuilder::reachable(std::int64_t tokens) const {
  state_->check_usable();
  return state_->states->reachable(tokens);
}

void ContextBuilder::resume(const Context& context) {
  State& s = *state_;
  s.check_usable();
  for (std::int64_t layer = 0; layer < s.shape.layers; ++layer) {
    if (s.tokens(layer) == 0) continue;
    throw InvalidArgument(
        fmt::format("resume: layer {} of the builder has {} tokens; give the context to a new one",
                    layer, s.tokens(layer)));
  }
  const Segment& segment = *context.segment_;
  if (const std::string other = shape_difference(context.shape(), s.shape); !other.empty())
    throw InvalidArgument("resume: the context's attention shape differs from the builder's: " +
                          other);
  if (context.dtype() != s.options.dtype) {
    throw InvalidArgument(fmt::format("resume: rows in {}; the builder's are in {}",
                                      context.dtype().name(), s.options.dtype.name()));
  }
  if (segment.tokens_before >= 0) {
    throw InvalidArgument(fmt::format(
        "resume: the rows came after {} tokens of a context; expected a context's own rows",
        segment.tokens_before));
  }
  s.check_room(s.shape.first_attention(), context.tokens());
  const auto lock = s.device.compute()->lock();
  s.close();
  const bool has_queries = s.options.keep_queries && segment.queries;
  PrefillQuerySample queries = has_queries ? *segment.queries : s.queries;
  for (std::int64_t layer = 0; !has_queries && layer < s.shape.layers; ++layer) queries.lose(layer);
  s.states->copy_from(*segment.states);
  s.queries = std::move(queries);
}

void ContextBuilder::synchronize() {
  State& s = *state_;
  s.check_usable();
  s.check_between_turns("synchronizing");
  const auto lock = s.device.compute()->lock();
  s.finish();
}

void ContextBuilder::truncate(std::int64_t tokens) {
  State& s = *state_;
  s.check_usable();
  for (std::int64_t layer = 0; layer < s.shape.layers; ++layer) {
    if (tokens >= 0 && tokens <= s.tokens(layer)) continue;
    throw InvalidArgument(
        fmt::format("truncate to {} tokens; layer {} has {}", tokens, layer, s.tokens(layer)));
  }
  s.states->check_reachable(tokens);
  const auto lock = s.device.compute()->lock();
  s.close();
  s.turn.layer = s.shape.first_attention();
  for (std::int64_t layer = 0; layer < s.shape.layers; ++layer) s.states->roll_back(layer, tokens);
  s.queries.truncate(tokens);
}

std::int64_t ContextBuilder::tokens(std::int64_t layer) const {
  state_->check_layer(layer);
  return state_->tokens(layer);
}

PrefillShare ContextBuilder::share(std::int64_t layer) const {
  State& s = *state_;
  s.check_usable();
  s.check_layer(layer);
  PrefillShare share = s.shares[static_cast<std::size_t>(layer)];
  if (!s.prefill) return share;
  const auto lock = s.device.compute()->lock();
  s.finish();
  return share += s.prefill->share(layer);
}

std::int64_t ContextBuilder::capacity() const {
  state_->check_usable();
  return state_->states->rows().capacity();
}

const AttentionShape& ContextBuilder::shape() const { return state_->shape; }
const Device& ContextBuilder::device() const { return state_->device; }
std::shared_ptr<const LayerStates> ContextBuilder::states() const { return state_->states; }

std::shared_ptr<const Context> ContextBuilder::freeze() {
  State& s = *state_;
  s.check_usable();
  s.check_equal_layers("freezing");
  const auto lock = s.device.compute()->lock();
  s.close();
  auto queries = std::make_shared<const PrefillQuerySample>(s.queries);
  auto context =
      Context(s.shape, {.states = s.states, .queries = std::move(queries)}).with_index("exact");
  s.states->freeze();
  s.states.reset();
  s.queries = {};
  return context;
}

}  // namespace topkv
