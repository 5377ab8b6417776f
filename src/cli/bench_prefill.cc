// `topkv bench prefill`.

#include <algorithm>

#include "src/cli/bench_run.h"
#include "src/cli/interrupt.h"
#include "src/core/bandwidth.h"
#include "src/core/stopwatch.h"
#include "src/core/threads.h"

namespace topkv::cli {
namespace {

// Rows that a query at `position` attends.
std::int64_t visible_rows(const AttentionShape& shape, std::int64_t layer, std::int64_t position,
                          const PrefillAttention& attention) {
  const std::int64_t all = position + 1;
  if (shape.window_of(layer) > 0) return std::min(all, shape.window_of(layer));
  if (attention.mode == Prefill::dense) return all;
  return std::min(all, attention.window + attention.sinks);
}

// Adds one chunk of one layer: appends its rows and takes the attention of its queries.
class Chunks {
 public:
  Chunks(ContextBuilder& builder, const std::vector<BenchLayer>& layers, std::int64_t chunk)
      : builder_(builder), layers_(layers) {
    const AttentionShape& shape = builder.shape();
    const auto tokens = static_cast<std::size_t>(chunk);
    const auto row = static_cast<std::size_t>(shape.head_dim);
    keys_.resize(tokens * static_cast<std::size_t>(shape.kv_heads) * row * 2);
    values_.resize(keys_.size());
    queries_.resize(tokens * static_cast<std::size_t>(shape.q_heads) * row);
    out_.resize(queries_.size());
  }

  void run(std::int64_t layer, std::int64_t count, const PrefillAttention& attention,
           PrefillResult& result) {
    const AttentionShape& shape = builder_.shape();
    const BenchLayer& source = layers_[static_cast<std::size_t>(layer)];
    const std::int64_t begin = builder_.tokens(layer);
    const std::int64_t q_size = shape.q_heads * shape.head_dim;
    source.fill(begin, count, keys_.data(), values_.data());
    parallel_for(count, 16, [&](std::int64_t i, std::int64_t end) {
      for (; i < end; ++i) source.queries(begin + i, begin + i + 1, queries_.data() + i * q_size);
    });
    const Stopwatch append;
    const auto rows = [&](const std::vector<std::byte>& data) {
      return TensorView::heads_first(data.data(), DType::bf16, count, shape.kv_heads,
                                     shape.head_dim);
    };
    builder_.append(layer, rows(keys_), rows(values_));
    result.append_seconds += append.seconds();
    const Stopwatch attend;
    builder_.attend(
        layer,
        TensorView::tokens_first(queries_.data(), DType::f32, count, shape.q_heads, shape.head_dim),
        out_.data(), attention);
    result.attend_seconds += attend.seconds();
    for (std::int64_t i = 0; i < count; ++i) {
      result.flop += 4.0 * static_cast<double>(q_size) *
                     static_cast<double>(visible_rows(shape, layer, begin + i, attention));
    }
  }

 private:
  ContextBuilder& builder_;
  const std::vector<BenchLayer>& layers_;
  std::vector<std::byte> keys_, values_;
  std::vector<float> queries_, out_;
};

PrefillResult measure(const BenchPlan& plan, const std::vector<BenchLayer>& layers,
                      const PrefillAttention& attention, BenchReport& report,
                      ProgressBar& progress) {
  PrefillResult result;
  result.mode = attention.mode;
  const std::int64_t chunk = std::min(plan.chunk, plan.context);
  result.tokens = plan.last_chunk ? chunk : plan.context;
  const std::int64_t before = plan.context - result.tokens;
  ContextBuilder builder(plan.shape, {plan.context, DType::bf16, 0});
  const Stopwatch rows;
  append_rows(builder, layers, before, progress.callback("rows"));
  report.rows_seconds += rows.seconds();
  Chunks chunks(builder, layers, chunk);
  const ProgressFn told = progress.callback(attention.mode == Prefill::dense ? "dense" : "window");
  for (std::int64_t done = 0; done < result.tokens; done += chunk) {
    const std::int64_t count = std::min(chunk, result.tokens - done);
    for (std::int64_t layer = 0; layer < plan.shape.layers; ++layer) {
      chunks.run(layer, count, attention, result);
      stop_if_interrupted();
    }
    told({"prefill", "tokens", done + count, result.tokens});
  }
  report.rows_bytes = builder.freeze()->memory().rows_bytes;
  return result;
}

}  // namespace

BenchReport run_bench_prefill(const BenchPlan& plan, ProgressBar& progress) {
  BenchReport report;
  report.what = "prefill";
  report.plan = plan;
  const std::vector<BenchLayer> layers = bench_layers(plan.shape, plan.seed);
  for (const PrefillAttention& attention : plan.attention) {
    report.prefill.push_back(measure(plan, layers, attention, report, progress));
  }
  report.read_bandwidth = read_bandwidth();
  return report;
}

}  // namespace topkv::cli
