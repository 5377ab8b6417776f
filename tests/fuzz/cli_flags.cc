// What flags may be given: numbers, and the options of retrieval, prefill and sampling. A line
// each.
#include <vector>

#include "src/cli/flags/options.h"
#include "src/cli/terminal/parse_numbers.h"
#include "tests/fuzz/target.h"

namespace fuzz = topkv::fuzz;
namespace cli = topkv::cli;

namespace {

/// Throws as the library does, or UsageError.
template <class Call>
void reads(const Call& call) {
  try {
    fuzz::accepts(call);
  } catch (const cli::UsageError& error) {
    fuzz::require(error.what()[0] != '\0', "an error without a message");
  }
}

}  // namespace

FUZZ_TARGET(cli_flags)(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  std::vector<std::string> lines;
  std::string_view rest = text;
  while (!rest.empty() && lines.size() < 16) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    lines.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  lines.resize(16);
  const std::string& first = lines.front();
  reads([&] {
    const std::int64_t count = cli::parse_count("-c", first);
    fuzz::require(count >= 1 && count <= cli::most_count, "a count out of its range", first);
  });
  reads(
      [&] { fuzz::require(cli::parse_bytes("--mem", first) >= 1 << 20, "too few bytes", first); });
  reads([&] {
    const double real = cli::parse_real("--temp", first, 0, 100);
    fuzz::require(real >= 0 && real <= 100, "a number out of its range", first);
  });
  reads([&] { cli::parse_seed("--seed", first); });
  reads([&] { cli::parse_counts("-c", first); });
  reads([&] {
    for (const double depth : cli::parse_depths("--depths", first))
      fuzz::require(depth >= 0 && depth <= 100, "a depth out of its range", first);
  });
  const auto or_default = [&](std::size_t i, const char* value) {
    return lines[i].empty() ? std::string(value) : lines[i];
  };
  const cli::RetrievalFlags retrieval{.indices = {or_default(0, "exact")},
                                      .tail = lines[1],
                                      .k = or_default(2, "64"),
                                      .mass = or_default(3, "none"),
                                      .error = or_default(4, "none"),
                                      .window = or_default(5, "1024"),
                                      .sinks = or_default(6, "4"),
                                      .select = or_default(7, "group"),
                                      .dense_layers = or_default(8, "0")};
  reads([&] { cli::check_flags(retrieval); });
  reads([&] {
    cli::retrieval_options(retrieval, 4, cli::full_spec(retrieval.indices.front()), 100);
  });
  const cli::PrefillFlags prefill{.mode = lines[9],
                                  .window = or_default(10, "1024"),
                                  .chunk = or_default(11, "auto"),
                                  .dtype = or_default(12, "bf16"),
                                  .memory = lines[13]};
  reads([&] { cli::check_flags(prefill); });
  reads([&] { cli::prefill_options(prefill, retrieval); });
  const cli::SamplingFlags sampling{.predict = lines[0],
                                    .temperature = lines[14],
                                    .top_p = lines[15],
                                    .top_k = lines[2],
                                    .seed = lines[3]};
  reads([&] { cli::check_flags(sampling); });
  reads([&] { cli::sampling_options(sampling); });
  return 0;
}
