// `topkv bench decode`.

#include <algorithm>
#include <cmath>
#include <memory>

#include "src/cli/bench/bench_inputs.h"
#include "src/cli/bench/bench_run.h"
#include "src/cli/terminal/interrupt.h"
#include "src/cli/terminal/profile.h"
#include "src/core/memory/bandwidth.h"
#include "src/core/threads/stopwatch.h"
#include "src/core/threads/threads.h"
#include "src/device/compute_device.h"

namespace topkv::cli {
namespace {

// Gives sessions one token after another, from buffers of their device.
class Decoder {
 public:
  Decoder(const AttentionShape& shape, const std::vector<BenchLayer>& layers,
          std::vector<Session>& sessions)
      : shape_(shape),
        layers_(layers),
        device_(*sessions[0].device().compute()),
        inputs_(device_, shape.layers * std::ssize(sessions) * q_size(),
                shape.layers * std::ssize(sessions) * kv_size()) {
    for (Session& session : sessions) sessions_.push_back(&session);
  }

  // Seconds of attention for one more token of each session, all layers in turn.
  double step() {
    const auto count = std::ssize(sessions_);
    parallel_for(shape_.layers * count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {  // of [layers, sessions]
        const BenchLayer& source = layers_[static_cast<std::size_t>(i / count)];
        const Session& session = *sessions_[static_cast<std::size_t>(i % count)];
        source.queries(session.own_tokens() + i % count * steps_apart, session.context().tokens(),
                       inputs_.q.data() + i * q_size());
        source.fill_float(session.tokens() + i % count * steps_apart, 1,
                          inputs_.k.data() + i * kv_size(), inputs_.v.data() + i * kv_size());
      }
    });
    {
      const auto lock = device_.lock();
      inputs_.send();
    }
    const Stopwatch watch;
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      Session::attend_together(sessions_, {.layer = layer,
                                           .tokens = 1,
                                           .q = inputs_.device_q() + layer * count * q_size(),
                                           .k = inputs_.device_k() + layer * count * kv_size(),
                                           .v = inputs_.device_v() + layer * count * kv_size(),
                                           .out = inputs_.device_out()});
    }
    const auto lock = device_.lock();  // not before: what is long in a step takes turns for it
    device_.synchronize();
    return watch.seconds();
  }

 private:
  std::int64_t q_size() const { return shape_.q_heads * shape_.head_dim; }
  std::int64_t kv_size() const { return shape_.kv_heads * shape_.head_dim; }

  static constexpr std::int64_t steps_apart = 1 << 20;  // no two sessions ask the same

  const AttentionShape& shape_;
  const std::vector<BenchLayer>& layers_;
  std::vector<Session*> sessions_;
  ComputeDevice& device_;
  BenchInputs inputs_;  // [layers, sessions, …]; out is used for one layer at a time
};

bool retrieves(const AttentionShape& shape, const RetrievalOptions& options, std::int64_t layer) {
  return shape.attends_all(layer) && layer >= options.dense_layers;
}

// Bytes that a token must read, without what several heads might share.
void count_bytes(const Context& context, const RetrievalOptions& options, std::int64_t retrieved,
                 DecodeResult& result) {
  const AttentionShape& shape = context.shape();
  const std::int64_t row = shape.row_bytes(context.dtype());
  const std::int64_t key = vector_bytes(context.dtype().keys, shape.head_dim);
  const std::int64_t n = context.tokens();
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::int64_t window = shape.window_of(layer);
    std::int64_t rows = window > 0 ? std::min(window, n) : n;
    if (retrieves(shape, options, layer)) {
      rows = std::min(n, options.window + options.sinks);
      if (options.index == "exact") result.key_bytes += shape.kv_heads * (n - rows) * key;
    }
    result.row_bytes += shape.kv_heads * rows * row;
  }
  result.row_bytes += retrieved * row;
}

DecodeResult measure(const std::shared_ptr<const Context>& context,
                     const std::vector<BenchLayer>& layers, const RetrievalOptions& options,
                     std::int64_t count, const Device& device, std::int64_t after,
                     std::int64_t tokens, const ProgressFn& progress) {
  const AttentionShape& shape = context->shape();
  DecodeResult result;
  result.index = options.index;
  result.sessions = count;
  std::vector<Session> sessions;
  const Stopwatch opening;
  for (std::int64_t i = 0; i < count; ++i) sessions.emplace_back(context, options, device);
  result.open_seconds = opening.seconds();
  Decoder decoder(shape, layers, sessions);
  const std::int64_t all = after + tokens;
  for (std::int64_t i = 0; i < after; ++i) {
    decoder.step();
    progress({"decode", "tokens", i + 1, all});
  }
  std::vector<std::vector<StepTimes>> before;
  SessionStats timed;
  for (const Session& session : sessions) {
    before.push_back(session.step_times());
    timed.rows_retrieved -= session.stats().rows_retrieved;
    timed.retrieving_steps -= session.stats().retrieving_steps;
  }
  for (std::int64_t i = 0; i < tokens; ++i) {
    result.token_seconds.push_back(decoder.step());
    progress({"decode", "tokens", after + i + 1, all});
  }
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    timed.rows_retrieved += sessions[i].stats().rows_retrieved;
    timed.retrieving_steps += sessions[i].stats().retrieving_steps;
    add_difference(result.layer_times, sessions[i].step_times(), before[i]);
  }
  result.coded_tokens = sessions.front().stats().coded_tokens;
  result.rows_per_head = timed.rows_per_retrieving_head(shape.q_heads);
  count_bytes(*context, options, timed.rows_retrieved / (count * tokens), result);
  return result;
}

}  // namespace

double DecodeResult::mean_of(double StepTimes::*part) const {
  double sum = 0;
  for (const StepTimes& layer : layer_times) sum += layer.*part;
  return token_seconds.empty() ? 0 : sum / static_cast<double>(token_seconds.size());
}

double DecodeResult::mean() const {
  double sum = 0;
  for (const double seconds : token_seconds) sum += seconds;
  return token_seconds.empty() ? 0 : sum / static_cast<double>(token_seconds.size());
}

double DecodeResult::quantile(double part) const {
  std::vector<double> sorted = token_seconds;
  std::sort(sorted.begin(), sorted.end());
  const auto rank = static_cast<std::size_t>(std::ceil(part * static_cast<double>(sorted.size())));
  return sorted.empty() ? 0 : sorted[std::max<std::size_t>(rank, 1) - 1];
}

BenchReport run_bench_decode(const BenchOptions& bench_options, const Device& device,
                             ProgressBar& progress) {
  BenchReport report;
  report.what = "decode";
  report.bench_options = bench_options;
  report.device = device;
  // Says whether the rows of context and session fit together, before any is made.
  ContextBuilder(bench_options.shape,
                 {.capacity = bench_options.context + bench_options.after + bench_options.tokens,
                  .memory_budget = bench_options.memory_budget});
  ContextBuilder builder(
      bench_options.shape,
      {.capacity = bench_options.context, .memory_budget = bench_options.memory_budget}, device);
  builder.reserve(0, 1);  // rows lie as a prefill of this device leaves them
  const std::vector<BenchLayer> layers = bench_layers(bench_options.shape, bench_options.seed);
  const Stopwatch rows;
  append_rows(builder, layers, bench_options.context, progress.callback("rows"));
  report.rows_seconds = rows.seconds();
  const std::shared_ptr<const Context> plain = builder.freeze();
  report.rows_bytes = plain->memory().rows_bytes;
  const RetrievalOptions& any = bench_options.rows.front();
  report.mass = attention_mass(*plain, layers, {64, 1024}, any.sinks, any.window);
  stop_if_interrupted();
  report.read_bandwidth = read_bandwidth();

  std::shared_ptr<const Context> context = plain;
  double build_seconds = 0;
  for (std::size_t i = 0; i < bench_options.rows.size(); ++i) {
    const RetrievalOptions& options = bench_options.rows[i];
    if (i == 0 || options.index != bench_options.rows[i - 1].index) {  // ks of one index share it
      const Stopwatch build;
      context = plain->ready_for(options, progress.index_callback(options.index), device);
      build_seconds = context == plain ? 0 : build.seconds();
    }
    const std::string title = "decode (" + options.index + ", top " + bench_options.ks[i] + ")";
    DecodeResult result =
        measure(context, layers, options, bench_options.sessions[i], device, bench_options.after,
                bench_options.tokens, progress.callback(title));
    result.k = bench_options.ks[i];
    result.index_bytes = context->memory().index_bytes - plain->memory().index_bytes;
    result.build_seconds = build_seconds;
    report.decode.push_back(std::move(result));
  }
  return report;
}

}  // namespace topkv::cli
