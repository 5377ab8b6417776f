// Rates of a model's prefill against the length of the text: dense, window, and sparse with several
// budgets. Of each: tokens per second, the shares of matrix products, attention and the rest, the
// keys that tokens attended beside dense attention's, and the device's memory at most.
//
//   prefill_bench [--device SPEC] [--gpu-mem GIB] [--mem GIB] [--weights FORMAT] [--kv-dtype TYPE]
//                 [--chunk TOKENS] [--way dense|window|sparse:KEYS[:MASS]]… [model directory
//                 [tokens…]]
//
// Ways take turns within a length. Weights may be random (tools/make_random_checkpoint.py): then
// give budgets without a mass, for what such a model attends has no meaning.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "bench/model_flags.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace {

/// "sparse:8192" or "sparse:8192:0.95".
topkv::PrefillAttention way_of(const std::string& text) {
  topkv::PrefillAttention way;
  way.mode = topkv::parse_prefill(text.substr(0, text.find(':')));
  if (way.mode != topkv::Prefill::sparse || text.find(':') == std::string::npos) return way;
  const std::string budget = text.substr(text.find(':') + 1);
  way.keys = std::stoll(budget);
  way.least_keys = std::min(way.least_keys, way.keys);
  way.mass = 1;
  if (const std::size_t mass = budget.find(':'); mass != std::string::npos)
    way.mass = std::stod(budget.substr(mass + 1));
  return way;
}

}  // namespace

int main(int argc, char** argv) try {
  constexpr double gib = 1 << 30;
  std::vector<std::string> ways;
  std::vector<char*> rest = {argv[0]};
  std::int64_t chunk = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--way" && i + 1 < argc) {
      ways.emplace_back(argv[++i]);
    } else if (argument == "--chunk" && i + 1 < argc) {
      chunk = bench::number(argv[++i]);
    } else {
      rest.push_back(argv[i]);
    }
  }
  if (ways.empty()) ways = {"dense", "window", "sparse:4096", "sparse:8192"};
  bench::ModelFlags flags =
      bench::model_flags(static_cast<int>(rest.size()), rest.data(), {4096, 16384, 65536});
  flags.prefill.chunk = chunk;
  const topkv::Device device = topkv::Device::open(flags.device, flags.gpu_memory);
  const topkv::Model model = topkv::Model::load(flags.directory, device, {}, flags.load);
  fmt::print("{} on {}; weights {}, rows {}\n\n", flags.directory, device.name(),
             topkv::name_of(flags.load.weights), flags.prefill.kv_dtype.name());
  fmt::print("{:>9} {:<18} {:>9} {:>9} {:>20} {:>8} {:>14}\n", "tokens", "prefill", "seconds",
             "tokens/s", "matmul/attend/other", "keys", "GPU memory GiB");
  for (const std::int64_t length : flags.lengths) {
    const auto tokens = bench::any_tokens(length, model.config().vocab_size);
    for (const std::string& way : ways) {
      flags.prefill.attention = way_of(way);
      topkv::ForwardTimes times;
      std::vector<topkv::PrefillShare> shares;
      const double seconds = bench::seconds_of(
          [&] { (void)model.prefill(tokens, flags.prefill, {}, &times, &shares); });
      topkv::PrefillShare share;
      for (const topkv::PrefillShare& layer : shares) share += layer;
      fmt::print("{:>9} {:<18} {:>9.2f} {:>9.0f} {:>20} {:>8} {:>14.2f}\n", length, way, seconds,
                 static_cast<double>(length) / seconds,
                 fmt::format("{:.1f}/{:.1f}/{:.1f} s", times.matmul, times.attention, times.other),
                 share.queries > 0
                     ? fmt::format("{:.0f}", share.keys / static_cast<double>(share.queries))
                     : "-",
                 static_cast<double>(device.memory().peak) / gib);
      std::fflush(stdout);
    }
  }
} catch (const topkv::Error& error) {
  fmt::print(stderr, "prefill_bench: {}\n", error.what());
  return 1;
}
