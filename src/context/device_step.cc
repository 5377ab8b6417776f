// A session's step when q, k and v come from a device: the window's part is computed there while
// the host searches and attends the rows found, and the device merges.
#include <algorithm>
#include <limits>

#include "src/context/session_state.h"
#include "src/core/faults.h"
#include "src/core/stopwatch.h"
#include "topkv/error.h"

namespace topkv {
namespace {

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

/// Tokens that a session can come to have.
std::int64_t most_tokens(const RetrievalOptions& options, std::int64_t context_tokens) {
  std::int64_t most = 0;
  return __builtin_add_overflow(context_tokens, options.capacity, &most)
             ? std::numeric_limits<std::int64_t>::max()
             : most;
}

}  // namespace

CausalWindow session_window(const RetrievalOptions& options, std::int64_t context_tokens) {
  const std::int64_t most = most_tokens(options, context_tokens);
  return {std::min(options.window, most), std::min(options.sinks, most)};
}

SessionShape session_shape(const AttentionShape& shape, const RetrievalOptions& options,
                           std::int64_t context_tokens) {
  const std::int64_t most = most_tokens(options, context_tokens);
  const CausalWindow resident = session_window(options, context_tokens);
  SessionShape out;
  out.attention = shape;
  for (std::int64_t& window : out.attention.sliding_window) window = std::min(window, most);
  out.window = resident.window;
  out.sinks = resident.sinks;
  out.dense_layers = std::min(options.dense_layers, shape.layers);
  return out;
}

void Session::State::open_on_device() {
  if (context->dtype() != DType::bf16) {
    throw InvalidArgument("a session on a CUDA device reads rows in bf16; the context holds " +
                          std::string(name_of(context->dtype())) +
                          ": prefill it with kv_dtype bf16");
  }
  const auto lock = device.compute()->lock();
  on_device = device.compute()->session_attention(session_shape(shape, options, context->tokens()));
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) load_on_device(layer);
}

/// Sinks and window as they are in the rows of context and session.
void Session::State::load_on_device(std::int64_t layer) {
  const auto lock = device.compute()->lock();
  const std::int64_t n = context->tokens();
  const std::int64_t end = n + own.size(layer);
  const auto load = [&](std::int64_t first, const auto& rows_of) {
    views.clear();
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) views.push_back(rows_of(head));
    on_device->load(layer, views, first, end);
  };
  load(0, [&](std::int64_t head) { return context->rows(layer, head); });
  load(n, [&](std::int64_t head) { return own.rows(layer, head); });
}

void Session::State::device_step(const AttentionStep& step) {
  const std::int64_t layer = step.layer;
  const std::int64_t tokens = step.tokens;
  const std::int64_t d = shape.head_dim;
  const std::int64_t first = position(layer);
  StepTimes& time = times(layer);
  Lap lap;
  reach_fault("session.begin");
  const DeviceSession::Step copied = on_device->begin(step, first);
  lap(time.q_out);
  append(layer, copied.q, tokens, copied.k, copied.v);
  lap(time.append);
  if (!retrieves(layer) && shape.window_of(layer) == 0) {
    attend_earlier(layer, first);
    lap(time.copy);
  }
  const TokenQueries queries{copied.q, tokens, shape.q_heads * d, d, first};
  PartialView found{nullptr, nullptr, 0, d};
  if (searches(layer, first + tokens)) {
    exact.reset(tokens * shape.q_heads, d);
    found = exact.view();
    retrieve(layer, queries, found);
    lap = Lap();
  }
  reach_fault("session.finish");
  on_device->finish(step, found);
  lap(time.merge);
}

/// Dense layers: all rows before the resident window, from both stores.
void Session::State::attend_earlier(std::int64_t layer, std::int64_t first) {
  const std::int64_t end = on_device->window_begin(layer, first);
  const std::int64_t n = context->tokens();
  const auto attend = [&](std::int64_t count, const auto& rows_of) {
    if (count <= 0) return;
    views.clear();
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
      views.push_back(rows_of(head));
      views.back().count = count;
    }
    on_device->attend_all(layer, views);
  };
  attend(std::min(end, n), [&](std::int64_t head) { return context->rows(layer, head); });
  attend(end - n, [&](std::int64_t head) { return own.rows(layer, head); });
}

}  // namespace topkv
