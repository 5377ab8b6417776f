// Prefill and decode rates of a model against context length. Decoding with `exact` reads every
// key once per token: that pass, at the machine's streaming bandwidth, is its floor.
//
//   rates_bench [--device SPEC] [--gpu-mem GIB] [--index SPEC] [model directory [tokens…]]
//
// The device is the host unless named. Weights may be random (tools/make_random_checkpoint.py).
#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <string>

#include "bench/machine.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace {

std::int64_t number(const char* text) {
  std::int64_t value = 0;
  const char* end = text + std::strlen(text);
  if (std::from_chars(text, end, value).ptr == end && value > 0) return value;
  throw topkv::InvalidArgument(fmt::format("'{}' is not a number from 1", text));
}

}  // namespace

int main(int argc, char** argv) try {
  std::string directory;
  std::string device_spec = "cpu";
  std::string index = "exact";
  std::int64_t ceiling = 0;
  std::vector<std::int64_t> lengths;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--device" && i + 1 < argc) {
      device_spec = argv[++i];
    } else if (argument == "--gpu-mem" && i + 1 < argc) {
      ceiling = number(argv[++i]) << 30;
    } else if (argument == "--index" && i + 1 < argc) {
      index = argv[++i];
    } else if (directory.empty()) {
      directory = argument;
    } else {
      lengths.push_back(number(argv[i]));
    }
  }
  if (directory.empty()) directory = "models/needle-14m";
  if (lengths.empty()) lengths = {4096, 16384, 65536, 262144};

  const topkv::Device device = topkv::Device::open(device_spec, ceiling);
  const topkv::Model model = topkv::Model::load(directory, device);
  const double bandwidth = bench::read_bandwidth();
  fmt::print("{} on {}, streaming read {:.1f} GB/s, {} k = 64, window 1024\n\n", directory,
             device.name(), bandwidth / 1e9, index);
  fmt::print("{:>9} {:>16} {:>22} {:>8} {:>14} {:>8} {:>25} {:>20}\n", "tokens", "prefill tok/s",
             "matmul/attend/other", "index s", "decode tok/s", "ms/token",
             "search/attend/network ms", "of one key pass");
  for (const std::int64_t length : lengths) {
    std::vector<topkv::Token> tokens(static_cast<std::size_t>(length));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<topkv::Token>(2 + i * 2654435761U % (model.config().vocab_size - 2));
    }
    topkv::ForwardTimes times;
    std::shared_ptr<const topkv::Context> context;
    const double prefill = bench::seconds_of([&] {
      context = model.prefill(tokens, {.attention = {.mode = topkv::Prefill::window}}, {}, &times);
    });
    const double indexing = bench::seconds_of([&] { context = context->with_index(index); });
    constexpr std::int64_t decoded = 16;
    topkv::Session session(context, {.index = index}, device);
    model.generate(session, std::vector<topkv::Token>{5}, {.max_tokens = 2});
    const double before = session.stats().search_seconds;
    const topkv::GenerateResult result =
        model.generate(session, std::vector<topkv::Token>{5}, {.max_tokens = decoded});
    const double steps = static_cast<double>(1 + result.steps);  // the prompt is one step too
    const double searched = (session.stats().search_seconds - before) / steps;
    const double key_bytes =
        static_cast<double>(length * model.config().kv_bytes_per_token(topkv::DType::bf16)) / 2;
    const double pass = key_bytes / bandwidth;
    fmt::print(
        "{:>9} {:>16.0f} {:>22} {:>8.1f} {:>14.1f} {:>8.2f} {:>25} {:>20}\n", length,
        static_cast<double>(length) / prefill,
        fmt::format("{:.0f}/{:.0f}/{:.0f} %", 100 * times.matmul / times.total(),
                    100 * times.attention / times.total(), 100 * times.other / times.total()),
        indexing, steps / (result.prompt_seconds + result.decode_seconds),
        1e3 * (result.prompt_seconds + result.decode_seconds) / steps,
        fmt::format("{:.2f} / {:.2f} / {:.2f}", 1e3 * searched,
                    1e3 * result.times.attention / steps,
                    1e3 * (result.times.matmul + result.times.other) / steps),
        index == "exact" ? fmt::format("{:.0f}%", 100 * pass / searched) : "-");
  }
  if (device.is_cuda()) {
    const topkv::DeviceMemory memory = device.memory();
    constexpr double gib = 1 << 30;
    fmt::print("\nGPU memory: {:.2f} GiB at most of {:.2f}; now {:.2f}, by the driver {:.2f}\n",
               static_cast<double>(memory.peak) / gib, static_cast<double>(memory.ceiling) / gib,
               static_cast<double>(memory.used) / gib, static_cast<double>(memory.driver) / gib);
  }
  fmt::print(
      "\n'of one key pass': the time to read all keys once, over the time spent searching.\n");
} catch (const topkv::Error& error) {
  fmt::print(stderr, "rates_bench: {}\n", error.what());
  return 1;
}
