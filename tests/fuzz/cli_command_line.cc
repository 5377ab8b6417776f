// Command lines up to where a command would run: words, a line each, the first of which says the
// command.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/flags/command_line.h"
#include "src/cli/terminal/parse_numbers.h"
#include "tests/fuzz/target.h"

namespace fuzz = topkv::fuzz;
namespace cli = topkv::cli;

FUZZ_TARGET(cli_command_line)(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> words;
  std::string_view rest = fuzz::text_of(data, size);
  while (!rest.empty() && words.size() < 64) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    words.push_back(std::string(rest.substr(0, end)).c_str());  // a word ends at a byte 0
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (words.empty()) return 0;
  // Only the command that is named: to add all takes a hundred times longer than to parse.
  const auto command =
      std::ranges::find(cli::all_commands, std::string_view(words.front()), &cli::Command::name);
  if (command == std::end(cli::all_commands)) return 0;
  CLI::App app("topkv");
  app.require_subcommand(0, 1);
  const cli::Run run = command->add(app);  // owns what flags are read into; it is not run
  std::vector<const char*> given = {"topkv"};
  for (const std::string& word : words) given.push_back(word.c_str());
  try {
    fuzz::accepts([&] {
      cli::check_command_line(*app.get_subcommand(words.front()), std::span(given).subspan(2));
      app.parse(static_cast<int>(given.size()), given.data());
    });
  } catch (const cli::UsageError&) {
  } catch (const CLI::Error&) {  // run_app tells both as usage errors
  }
  return 0;
}
