// Prefill and decode rates of a model against context length. Decoding with `exact` reads every
// key once per token: that pass, at the machine's streaming bandwidth, is its floor.
//
//   rates_bench [model directory [tokens…]]
#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <string>

#include "bench/machine.h"
#include "topkv/error.h"
#include "topkv/model.h"

int main(int argc, char** argv) try {
  const std::string directory = argc > 1 ? argv[1] : "models/needle-14m";
  std::vector<std::int64_t> lengths;
  for (int i = 2; i < argc; ++i) {
    std::int64_t length = 0;
    const char* end = argv[i] + std::strlen(argv[i]);
    if (std::from_chars(argv[i], end, length).ptr != end || length < 1) {
      fmt::print(stderr, "rates_bench: '{}' is not a number of tokens\n", argv[i]);
      return 2;
    }
    lengths.push_back(length);
  }
  if (lengths.empty()) lengths = {4096, 16384, 65536, 262144};

  const topkv::Model model = topkv::Model::load(directory);
  const double bandwidth = bench::read_bandwidth();
  fmt::print("{}, streaming read {:.1f} GB/s, exact k = 64, window 1024\n\n", directory,
             bandwidth / 1e9);
  fmt::print("{:>9} {:>16} {:>22} {:>14} {:>13} {:>20}\n", "tokens", "prefill tok/s",
             "matmul/attend/other", "decode tok/s", "ms searching", "of one key pass");
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
    constexpr std::int64_t decoded = 16;
    topkv::Session session(context);
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
        "{:>9} {:>16.0f} {:>22} {:>14.1f} {:>13.2f} {:>19.0f}%\n", length,
        static_cast<double>(length) / prefill,
        fmt::format("{:.0f}/{:.0f}/{:.0f} %", 100 * times.matmul / times.total(),
                    100 * times.attention / times.total(), 100 * times.other / times.total()),
        steps / (result.prompt_seconds + result.decode_seconds), searched * 1e3,
        100 * pass / searched);
  }
  fmt::print(
      "\n'of one key pass': the time to read all keys once, over the time spent searching.\n");
} catch (const topkv::Error& error) {
  fmt::print(stderr, "rates_bench: {}\n", error.what());
  return 1;
}
