#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "src/context/index_growth.h"
#include "src/core/threads/stopwatch.h"
#include "src/model/generate/progress_scope.h"
#include "src/model/model_impl.h"
#include "src/model/network/forward.h"
#include "src/model/network/key_bias.h"
#include "src/store/row_store.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Gives the logits of the last run's `count` tokens, some at a time. first: of number 0.
void give_logits(Forward& forward, std::int64_t first, std::int64_t count, std::int64_t vocab,
                 const PrefillOptions& options) {
  constexpr std::int64_t some = 64;  // tokens, so that their logits take little memory
  std::vector<float> logits(static_cast<std::size_t>(std::min(some, count) * vocab));
  for (std::int64_t begin = 0; begin < count; begin += some) {
    const std::int64_t tokens = std::min(some, count - begin);
    forward.logits(begin, tokens, logits.data());
    options.on_logits(first + begin,
                      std::span(logits).first(static_cast<std::size_t>(tokens * vocab)));
  }
}

}  // namespace

std::int64_t Model::prefill_rows_bytes(std::int64_t tokens, const PrefillOptions& given) const {
  PrefillOptions options = given;
  options.attention = prefill_attention(given, tokens);
  constexpr std::int64_t any_room = std::numeric_limits<std::int64_t>::max();
  const std::int64_t chunk =
      choose_prefill_chunk(impl_->config, *impl_->device.compute(), options, tokens, any_room);
  return RowStore::bytes_while_read(impl_->config.attention, options.kv_dtype, tokens, chunk);
}

PrefillAttention Model::prefill_attention(const PrefillOptions& options,
                                          std::int64_t tokens) const {
  const std::shared_ptr<ComputeDevice>& device = impl_->device.compute();
  const DeviceMemory memory = device->memory();
  return fitting_prefill(impl_->config, *device, options, tokens, memory.ceiling - memory.used);
}

std::shared_ptr<const Context> Model::prefill(std::span<const Token> tokens,
                                              const PrefillOptions& given,
                                              const ProgressFn& progress, ForwardTimes* times,
                                              std::vector<PrefillShare>* shares) const {
  PrefillOptions options = given;
  if (tokens.empty()) throw InvalidArgument("prefill was given no tokens; it needs at least one");
  if (options.chunk < 0) {
    throw InvalidArgument(
        fmt::format("prefill chunk of {} tokens; expected at least 1, or 0 for what suits the "
                    "device",
                    options.chunk));
  }
  impl_->check_tokens(tokens);
  const ModelConfig& config = impl_->config;
  const std::shared_ptr<ComputeDevice>& device = impl_->device.compute();
  const auto total = static_cast<std::int64_t>(tokens.size());
  impl_->check_reach(total);
  options.attention = prefill_attention(options, total);
  bool keep_queries = options.keep_queries;
  for (const std::string& text : options.indices) {
    const IndexSpec spec(text);
    spec.check(config.attention.head_dim, total);
    keep_queries = keep_queries || spec.learns_queries();
  }
  // A builder calls it a wrong argument; of a model's prefill it is what the device cannot do.
  if (!device->takes_rows(options.kv_dtype)) {
    throw Unsupported(fmt::format(
        "rows in {} on a CUDA device; expected bf16, q8 or q4 there (a CPU takes f16 and f32, too)",
        options.kv_dtype.name()));
  }
  if (options.kv_dtype.keys == DType::q4 && has_unknown_key_bias(config) &&
      !impl_->told_key_biases.exchange(true)) {
    impl_->warn(
        fmt::format("keys in {}: a norm follows the biases of this model's keys, so that topkv "
                    "cannot subtract them before it rounds; large biases leave too few of the 4 "
                    "bits, and rows may not be found: use q8 or q8/q4",
                    options.kv_dtype.name()));
  }
  AttentionShape shape = config.attention;
  if (shape.indexer && options.indexer_top) {
    shape.indexer->top = *options.indexer_top;
    shape.indexer->local_blocks = std::min(shape.indexer->local_blocks, shape.indexer->top);
  }
  ContextBuilder builder(
      std::move(shape),
      {.capacity = total,
       .dtype = options.kv_dtype,
       .attention = options.attention,
       .memory_budget = options.memory_budget,
       .keep_queries = keep_queries,
       .key_bias = in_blocks(options.kv_dtype.keys) ? impl_->key_bias : std::vector<float>()},
      impl_->device);
  const DeviceMemory memory = device->memory();
  const std::int64_t chunk =
      choose_prefill_chunk(config, *device, options, total, memory.ceiling - memory.used);
  Forward forward(config, impl_->weights, device, chunk);
  builder.reserve(total, chunk);
  const TextLayers text = TextLayers::of(builder);
  IndexGrowth growth(device->is_cuda() ? options.indices : std::vector<std::string>(), builder);
  ProgressScope reading(progress, "prefill", total);
  for (std::int64_t begin = 0; begin < total; begin += chunk) {
    const std::int64_t count = std::min(chunk, total - begin);
    reading.chunk(count, [&] {
      const auto lock = device->lock();
      const auto chunk_tokens =
          tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
      impl_->blaming_weights([&] {
        forward.run(chunk_tokens, begin, total, text);
        if (options.on_logits) give_logits(forward, begin, count, config.vocab_size, options);
        if (begin + count == total) builder.synchronize();
        builder.snapshot();
      });
    });
  }
  if (shares != nullptr) {
    shares->clear();
    for (std::int64_t layer = 0; layer < config.attention.layers; ++layer)
      shares->push_back(builder.share(layer));
  }
  const Stopwatch indexing;
  std::shared_ptr<const Context> context = growth.freeze(progress)->with_tokens(tokens);
  for (const std::string& spec : options.indices)
    context = context->with_index(spec, progress, impl_->device);
  if (times != nullptr) {
    *times += forward.times();
    times->indexing += indexing.seconds();
  }
  return context;
}

std::vector<float> Model::logits(std::span<const Token> tokens) const {
  if (tokens.empty()) throw InvalidArgument("logits of no tokens; give at least one");
  impl_->check_tokens(tokens);
  const ModelConfig& config = impl_->config;
  const std::shared_ptr<ComputeDevice>& device = impl_->device.compute();
  const auto total = static_cast<std::int64_t>(tokens.size());
  impl_->check_reach(total);
  const DType dtype = device->is_cuda() ? DType::bf16 : DType::f32;
  AttentionShape shape = config.attention;
  if (shape.indexer) shape.indexer->top = every_index_block;
  ContextBuilder builder(std::move(shape), {.capacity = total, .dtype = dtype}, impl_->device);
  const auto lock = device->lock();
  Forward forward(config, impl_->weights, device, total);
  impl_->blaming_weights([&] {
    forward.run(tokens, 0, total, TextLayers::of(builder));
    builder.synchronize();
  });
  std::vector<float> logits(static_cast<std::size_t>(total * config.vocab_size));
  forward.logits(0, total, logits.data());
  return logits;
}

}  // namespace topkv
