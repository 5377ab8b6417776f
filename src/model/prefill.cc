#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/model/forward.h"
#include "src/model/model_impl.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Attention of a prefill: rows go to the builder, queries see what the prefill mode allows.
AttendFn attend_in(ContextBuilder& builder, const PrefillAttention& attention) {
  return [&builder, &attention](std::int64_t layer, const float* q, const float* k, const float* v,
                                float* out, std::int64_t tokens) {
    const AttentionShape& shape = builder.shape();
    builder.append(layer,
                   TensorView::tokens_first(k, DType::f32, tokens, shape.kv_heads, shape.head_dim),
                   TensorView::tokens_first(v, DType::f32, tokens, shape.kv_heads, shape.head_dim));
    builder.attend(layer,
                   TensorView::tokens_first(q, DType::f32, tokens, shape.q_heads, shape.head_dim),
                   out, attention);
  };
}

}  // namespace

std::shared_ptr<const Context> Model::prefill(std::span<const Token> tokens,
                                              const PrefillOptions& options,
                                              const ProgressFn& progress,
                                              ForwardTimes* times) const {
  if (tokens.empty()) throw InvalidArgument("prefill was given no tokens; it needs at least one");
  if (options.chunk < 1) {
    throw InvalidArgument(
        fmt::format("prefill chunk of {} tokens; expected at least 1", options.chunk));
  }
  impl_->check_tokens(tokens);
  const auto total = static_cast<std::int64_t>(tokens.size());
  ContextBuilder builder(
      impl_->config.attention,
      {.capacity = total, .dtype = options.kv_dtype, .memory_budget = options.memory_budget});
  Forward forward(impl_->config, impl_->weights, impl_->device);
  const AttendFn attend = attend_in(builder, options.attention);
  for (std::int64_t begin = 0; begin < total; begin += options.chunk) {
    const std::int64_t count = std::min(options.chunk, total - begin);
    forward.run(tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)),
                begin, attend);
    if (progress) progress({"prefill", "tokens", begin + count, total});
  }
  if (times != nullptr) *times += forward.times();
  return builder.freeze();
}

std::vector<float> Model::logits(std::span<const Token> tokens) const {
  if (tokens.empty()) throw InvalidArgument("logits of no tokens; give at least one");
  impl_->check_tokens(tokens);
  const auto total = static_cast<std::int64_t>(tokens.size());
  ContextBuilder builder(impl_->config.attention, {.capacity = total, .dtype = DType::f32});
  Forward forward(impl_->config, impl_->weights, impl_->device);
  std::vector<float> logits(static_cast<std::size_t>(total * impl_->config.vocab_size));
  const PrefillAttention dense;
  forward.logits(forward.run(tokens, 0, attend_in(builder, dense)), total, logits.data());
  return logits;
}

}  // namespace topkv
