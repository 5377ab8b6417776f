// `topkv bench prefill`.

#include <algorithm>

#include "src/cli/bench/bench_inputs.h"
#include "src/cli/bench/bench_run.h"
#include "src/cli/terminal/interrupt.h"
#include "src/context/prefill_visibility.h"
#include "src/core/memory/bandwidth.h"
#include "src/core/threads/stopwatch.h"
#include "src/core/threads/threads.h"
#include "src/device/compute_device.h"

namespace topkv::cli {
namespace {

// Rows that a query at `position` attends.
std::int64_t visible_rows(const CausalWindow& visible, std::int64_t position) {
  const std::int64_t all = position + 1;
  return visible.window == 0 ? all : std::min(all, visible.window + visible.sinks);
}

// Gives a builder chunks of generated tokens, from buffers of its device. All layers of a chunk get
// the rows and queries of the first: what they hold does not change the time.
class Chunks {
 public:
  Chunks(ContextBuilder& builder, const BenchLayer& source, const PrefillAttention& attention,
         std::int64_t chunk)
      : builder_(builder),
        shape_(builder.shape()),
        source_(source),
        visible_(prefill_visibility(shape_, attention, builder.device().is_cuda())),
        device_(*builder.device().compute()),
        inputs_(device_, chunk * shape_.q_heads * shape_.head_dim,
                chunk * shape_.kv_heads * shape_.head_dim),
        given_(builder.tokens(0)) {}

  // Attention of the next tokens in all layers, and their rows to the store.
  void run(std::int64_t count, PrefillResult& result) {
    const std::int64_t q_size = shape_.q_heads * shape_.head_dim;
    source_.fill_float(given_, count, inputs_.k.data(), inputs_.v.data());
    parallel_for(count, 16, [&](std::int64_t i, std::int64_t end) {
      for (; i < end; ++i)
        source_.queries(given_ + i, given_ + i + 1, inputs_.q.data() + i * q_size);
    });
    const auto lock = device_.lock();
    inputs_.send();
    const Stopwatch watch;
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      builder_.attend({.layer = layer,
                       .tokens = count,
                       .q = inputs_.device_q(),
                       .k = inputs_.device_k(),
                       .v = inputs_.device_v(),
                       .out = inputs_.device_out()});
    }
    builder_.synchronize();
    result.attend_seconds += watch.seconds();
    for (std::int64_t i = 0; i < count; ++i) {
      for (const LayerVisibility& layer : visible_) {
        const CausalWindow& visible = layer.window;
        result.flop += 4.0 * static_cast<double>(q_size) *
                       static_cast<double>(visible_rows(visible, given_ + i));
      }
    }
    given_ += count;
  }

 private:
  ContextBuilder& builder_;
  const AttentionShape& shape_;
  const BenchLayer& source_;
  PrefillVisibility visible_;
  ComputeDevice& device_;
  BenchInputs inputs_;
  std::int64_t given_;
};

PrefillResult measure(const BenchOptions& bench_options, const std::vector<BenchLayer>& layers,
                      const PrefillAttention& attention, BenchReport& report,
                      ProgressBar& progress) {
  PrefillResult result;
  result.mode = attention.mode;
  const std::int64_t wanted =
      bench_options.chunk > 0 ? bench_options.chunk : report.device.compute()->prefill_chunk();
  const std::int64_t chunk = std::min(wanted, bench_options.context);
  report.bench_options.chunk = chunk;
  result.tokens = bench_options.last_chunk ? chunk : bench_options.context;
  // One chunk more before the last one warms up: libraries choose and load their kernels then.
  const std::int64_t warm_up =
      bench_options.last_chunk && bench_options.context >= 2 * chunk ? chunk : 0;
  const std::int64_t before = bench_options.context - result.tokens - warm_up;
  ContextBuilder builder(bench_options.shape,
                         {.capacity = bench_options.context,
                          .attention = attention,
                          .memory_budget = bench_options.memory_budget},
                         report.device);
  const Stopwatch rows;
  append_rows(builder, layers, before, progress.callback("rows"));
  report.rows_seconds += rows.seconds();
  builder.reserve(bench_options.context, chunk);
  Chunks chunks(builder, layers.front(), attention, chunk);
  const ProgressFn told = progress.callback(std::string(name_of(attention.mode)));
  if (warm_up > 0) {
    PrefillResult unused;
    chunks.run(warm_up, unused);
  }
  for (std::int64_t done = 0; done < result.tokens; done += chunk) {
    const std::int64_t count = std::min(chunk, result.tokens - done);
    chunks.run(count, result);
    stop_if_interrupted();
    told({"prefill", "tokens", done + count, result.tokens});
  }
  report.rows_bytes = builder.freeze()->memory().rows_bytes;
  return result;
}

}  // namespace

BenchReport run_bench_prefill(const BenchOptions& bench_options, const Device& device,
                              ProgressBar& progress) {
  BenchReport report;
  report.what = "prefill";
  report.bench_options = bench_options;
  report.device = device;
  const std::vector<BenchLayer> layers = bench_layers(bench_options.shape, bench_options.seed);
  for (const PrefillAttention& attention : bench_options.attention) {
    report.prefill.push_back(measure(bench_options, layers, attention, report, progress));
  }
  report.read_bandwidth = read_bandwidth();
  return report;
}

}  // namespace topkv::cli
