// A session's step when q, k and v are in host memory.
#include <algorithm>

#include "src/context/session_state.h"
#include "src/core/faults.h"
#include "src/core/stopwatch.h"

namespace topkv {

/// The exact part: everything for a dense layer, else the sliding window, or sinks and window.
void Session::State::attend_visible(std::int64_t layer, const TokenQueries& queries,
                                    PartialView out) {
  CausalWindow visible;
  if (shape.window_of(layer) > 0) {
    visible.window = shape.window_of(layer);
  } else if (retrieves(layer)) {
    visible = resident;
  }
  const auto attend_span = [&](std::int64_t first, auto rows_of, PartialView part) {
    spans.clear();
    for (std::int64_t head = 0; head < shape.kv_heads; ++head)
      spans.push_back({rows_of(head), first});
    attend_tokens(shape, queries, visible, spans.data(), part);
  };
  const auto own_rows = [&](std::int64_t head) { return own.rows(layer, head); };
  const std::int64_t n = context->tokens();
  if (n == 0) {
    attend_span(0, own_rows, out);
    return;
  }
  attend_span(
      0, [&](std::int64_t head) { return context->rows(layer, head); }, out);
  own_part.reset(out.heads, out.head_dim);
  attend_span(n, own_rows, own_part.view());
  merge(out, own_part.view());
}

void Session::State::host_step(const AttentionStep& step) {
  const std::int64_t d = shape.head_dim;
  const std::int64_t heads = step.tokens * shape.q_heads;
  const TokenQueries queries{step.q, step.tokens, shape.q_heads * d, d, position(step.layer)};
  StepTimes& time = times(step.layer);
  const Stopwatch appending;
  const auto rows = [&](const float* x) {
    return TensorView::tokens_first(x, DType::f32, step.kv_count(), shape.kv_heads, d);
  };
  append(step.layer, step.q, step.tokens, rows(step.k), rows(step.v));
  time.append += appending.seconds();

  const Stopwatch attending;
  exact.reset(heads, d);  // step.out may be step.q, which is read to the end
  const PartialView result = exact.view();
  reach_fault("session.window");
  attend_visible(step.layer, queries, result);
  time.window += attending.seconds();
  if (searches(step.layer, queries.first + queries.tokens)) retrieve(step.layer, queries, result);
  std::copy_n(result.out, heads * d, step.out);
  if (step.lse != nullptr) std::copy_n(result.lse, heads, step.lse);
}

}  // namespace topkv
