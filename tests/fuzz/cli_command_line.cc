// Command lines up to where a command would run: words, a line each, the first of which says the
// command.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

#include "src/cli/arguments.h"
#include "src/cli/commands.h"
#include "src/cli/numbers.h"
#include "tests/fuzz/target.h"

namespace fuzz = topkv::fuzz;
namespace cli = topkv::cli;

namespace {

struct Command {
  std::string_view name;
  cli::Run (*add)(CLI::App& app);
};

constexpr Command commands[] = {
    {"needle", cli::add_needle},         {"generate", cli::add_generate},
    {"chat", cli::add_chat},             {"prefill", cli::add_prefill},
    {"ask", cli::add_ask},               {"serve", cli::add_serve},
    {"verify", cli::add_verify},         {"info", cli::add_info},
    {"plan", cli::add_plan},             {"fidelity", cli::add_fidelity},
    {"perplexity", cli::add_perplexity}, {"eval", cli::add_eval},
    {"bench", cli::add_bench},           {"completion", cli::add_completion},
    {"manual", cli::add_manual},
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> words;
  std::string_view rest = fuzz::text_of(data, size);
  while (!rest.empty() && words.size() < 64) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    words.push_back(std::string(rest.substr(0, end)).c_str());  // a word ends at a byte 0
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (words.empty()) return 0;
  // Only the command that is named: to add all takes a hundred times longer than to parse.
  const auto command = std::ranges::find(commands, words.front(), &Command::name);
  if (command == std::end(commands)) return 0;
  CLI::App app("topkv");
  app.require_subcommand(0, 1);
  const cli::Run run = command->add(app);  // owns what flags are read into; it is not run
  std::vector<const char*> given = {"topkv"};
  for (const std::string& word : words) given.push_back(word.c_str());
  try {
    fuzz::accepts([&] {
      cli::check_arguments(*app.get_subcommand(words.front()), std::span(given).subspan(2));
      app.parse(static_cast<int>(given.size()), given.data());
    });
  } catch (const cli::UsageError&) {
  } catch (const CLI::Error&) {  // run_app tells both as usage errors
  }
  return 0;
}
