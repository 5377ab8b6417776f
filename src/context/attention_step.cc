#include "src/context/attention_step.h"

#include <fmt/format.h>

#include "topkv/error.h"

namespace topkv {

void check_step(const AttentionShape& shape, const AttentionStep& step) {
  if (step.layer < 0 || step.layer >= shape.layers || step.tokens < 1) {
    throw InvalidArgument(
        fmt::format("attend: layer {}, {} tokens; there are {} layers and a step has at least 1 "
                    "token",
                    step.layer, step.tokens, shape.layers));
  }
  if (step.kv_first < 0 || step.kv_first > step.tokens || step.kv_tokens < -1 ||
      step.kv_tokens > step.tokens - step.kv_first) {
    throw InvalidArgument(
        fmt::format("attend: kv_first {} and kv_tokens {} in a step of {} tokens; K and V must be "
                    "of tokens of the step, -1 for all from kv_first on",
                    step.kv_first, step.kv_tokens, step.tokens));
  }
  const bool kv_missing = step.kv_count() > 0 && (step.k == nullptr || step.v == nullptr);
  if (step.q == nullptr || step.out == nullptr || kv_missing) {
    throw InvalidArgument(
        "attend: q, k, v and out must not be null; only a step with kv_tokens 0 has no k and v");
  }
}

}  // namespace topkv
