// What flags may be given: numbers, and the options of retrieval, prefill and sampling. A line
// each.
#include <type_traits>
#include <vector>

#include "src/cli/flags/bind.h"
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
  cli::RetrievalFlags retrieval;
  cli::PrefillFlags prefill;
  cli::SamplingFlags sampling;
  std::size_t next = 0;
  const auto read_line = [&](std::string_view name, auto& value) {
    using Value = std::remove_reference_t<decltype(value)>;
    const cli::Flag& flag = *cli::find_flag(cli::help_of("needle").groups, name);
    value = cli::initial_value<Value>(flag);
    if constexpr (!std::is_same_v<Value, bool>) {
      const std::string& line = lines[next++ % lines.size()];
      if (!line.empty()) reads([&] { cli::read_value(flag, line, value); });
    }
  };
  cli::visit_flags(retrieval, read_line);
  cli::visit_flags(prefill, read_line);
  cli::visit_flags(sampling, read_line);
  reads([&] { cli::check_flags(retrieval); });
  if (retrieval.indices.empty()) retrieval.indices = {"exact"};
  reads([&] {
    cli::retrieval_options(retrieval, 4, cli::full_spec(retrieval.indices.front()), 100);
  });
  reads([&] { cli::prefill_options(prefill, retrieval); });
  reads([&] { cli::sampling_options(sampling); });
  return 0;
}
