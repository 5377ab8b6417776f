#include "src/context/prefill_visibility.h"

#include <fmt/format.h>

#include "topkv/error.h"

namespace topkv {
namespace {

CausalWindow visible(const AttentionShape& shape, std::int64_t layer,
                     const PrefillAttention& attention) {
  if (!shape.is_attention(layer)) return {1, 0};  // it attends nothing
  if (const std::int64_t sliding = shape.window_of(layer); sliding > 0) return {sliding, 0};
  if (attention.mode == Prefill::dense) return {};
  if (attention.window < 1 || attention.sinks < 0) {
    throw InvalidArgument(
        fmt::format("prefill window of {} tokens with {} sinks; expected at least 1 and 0",
                    attention.window, attention.sinks));
  }
  return {attention.window, attention.sinks};
}

}  // namespace

PrefillVisibility prefill_visibility(const AttentionShape& shape,
                                     const PrefillAttention& attention) {
  PrefillVisibility all;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    all.push_back(visible(shape, layer, attention));
  }
  return all;
}

}  // namespace topkv
