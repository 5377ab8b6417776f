// Prefill and decode rates of a model against context length, and the memory it took. Decoding with
// `exact` reads every key once per token: that pass, at the machine's streaming bandwidth, is its
// floor. Decoding with codes reads the weights (of the embedding, unless it is tied to the output
// layer, a row) and the codes once per token: their bytes are printed, for the data sheet's
// bandwidth.
//
//   rates_bench [--device SPEC] [--gpu-mem GIB] [--device-rows GIB] [--mem GIB] [--index SPEC]
//               [--topk K]… [--weights FORMAT] [--kv-dtype TYPE] [--prefill window|dense]
//               [model directory [tokens…]]
//
// The device is the host unless named. --topk may be repeated: each number has a row of its own.
// Weights may be random (tools/make_random_checkpoint.py).
#include <fmt/format.h>

#include <fstream>
#include <optional>
#include <string>

#include "bench/machine.h"
#include "bench/model_flags.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace {

/// VmHWM and the like of this process, in GiB.
double status_gib(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stod(line.substr(name.size() + 1)) / (1 << 20);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  constexpr double gib = 1 << 30;
  const bench::ModelFlags flags = bench::model_flags(argc, argv, {4096, 16384, 65536, 262144});
  const topkv::Device device = topkv::Device::open(flags.device, flags.gpu_memory);
  const topkv::DevicePlan plan =
      topkv::Model::plan(flags.directory, device, flags.prefill, {}, flags.load.weights);
  std::optional<topkv::Model> loaded;
  const double loading = bench::seconds_of(
      [&] { loaded = topkv::Model::load(flags.directory, device, {}, flags.load); });
  const topkv::Model& model = *loaded;
  const double bandwidth = bench::read_bandwidth();
  fmt::print("{} on {}, streaming read {:.1f} GB/s, {}, window 1024\n", flags.directory,
             device.name(), bandwidth / 1e9, flags.index);
  fmt::print("weights {}: {:.2f} GiB, loaded in {:.1f} s; rows {}\n\n",
             topkv::name_of(flags.load.weights), static_cast<double>(plan.weights_bytes) / gib,
             loading, flags.prefill.kv_dtype.name());
  fmt::print("{:>9} {:>6} {:>14} {:>20} {:>8} {:>14} {:>13} {:>9} {:>25} {:>16} {:>10} {:>10}\n",
             "tokens", "k", "prefill tok/s", "matmul/attend/other", "index s", "first token s",
             "decode tok/s", "ms/token", "search/attend/network ms", "of one key pass", "codes GiB",
             "rows GiB");
  topkv::RetrievalOptions options = {.index = flags.index, .device_rows = flags.device_rows};
  for (const std::int64_t length : flags.lengths) {
    const auto tokens = bench::any_tokens(length, model.config().vocab_size);
    topkv::ForwardTimes times;
    std::shared_ptr<const topkv::Context> context;
    const double prefill =
        bench::seconds_of([&] { context = model.prefill(tokens, flags.prefill, {}, &times); });
    const double indexing =
        bench::seconds_of([&] { context = context->ready_for(options, {}, device); });
    for (const std::int64_t k : flags.top) {
      options.k = topkv::TopK::same(k);
      constexpr std::int64_t decoded = 64;
      std::optional<topkv::Session> opened;
      const double first = bench::seconds_of([&] {
        opened.emplace(context, options, device);
        model.generate(*opened, std::vector<topkv::Token>{5}, {.max_tokens = 1});
      });
      topkv::Session& session = *opened;
      model.generate(session, std::vector<topkv::Token>{5}, {.max_tokens = 2});
      const double before = session.stats().search_seconds;
      const topkv::GenerateResult result =
          model.generate(session, std::vector<topkv::Token>{5}, {.max_tokens = decoded});
      const double steps = static_cast<double>(1 + result.steps);  // the prompt is one step too
      const double searched = (session.stats().search_seconds - before) / steps;
      const topkv::AttentionShape& shape = model.config().attention;
      const auto key_bytes =
          static_cast<double>(length * shape.layers * shape.kv_heads *
                              topkv::vector_bytes(flags.prefill.kv_dtype.keys, shape.head_dim));
      fmt::print(
          "{:>9} {:>6} {:>14.0f} {:>20} {:>8.1f} {:>14.1f} {:>13.1f} {:>9.2f} {:>25} {:>16} "
          "{:>10.2f} {:>10.2f}\n",
          length, k, static_cast<double>(length) / prefill,
          fmt::format("{:.0f}/{:.0f}/{:.0f} %", 100 * times.matmul / times.total(),
                      100 * times.attention / times.total(), 100 * times.other / times.total()),
          indexing, prefill + indexing + first,
          static_cast<double>(result.steps) / result.decode_seconds,
          1e3 * result.decode_seconds / static_cast<double>(result.steps),
          fmt::format("{:.2f} / {:.2f} / {:.2f}", 1e3 * searched,
                      1e3 * result.times.attention / steps,
                      1e3 * (result.times.matmul + result.times.other) / steps),
          flags.index == "exact" ? fmt::format("{:.0f}%", 100 * key_bytes / bandwidth / searched)
                                 : "-",
          static_cast<double>(session.stats().device_index_bytes) / gib,
          static_cast<double>(context->memory().rows_bytes) / gib);
      std::fflush(stdout);
    }
  }
  if (device.is_cuda()) {
    const topkv::DeviceMemory memory = device.memory();
    fmt::print("\nGPU memory: {:.2f} GiB at most of {:.2f}; now {:.2f}, by the driver {:.2f}\n",
               static_cast<double>(memory.peak) / gib, static_cast<double>(memory.ceiling) / gib,
               static_cast<double>(memory.used) / gib, static_cast<double>(memory.driver) / gib);
  }
  fmt::print("host memory: {:.2f} GiB at most by the system, of it mapped files now {:.2f}\n",
             status_gib("VmHWM"), status_gib("RssFile"));
  fmt::print(
      "\n'of one key pass': the time to read all keys once, over the time spent searching.\n");
} catch (const topkv::Error& error) {
  fmt::print(stderr, "rates_bench: {}\n", error.what());
  return 1;
}
