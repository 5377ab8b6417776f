#include "src/cli/app.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/flags/command_line.h"
#include "src/cli/flags/help.h"
#include "src/cli/flags/options.h"
#include "src/cli/flags/suggest.h"
#include "src/cli/terminal/interrupt.h"
#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/terminal.h"
#include "src/cli/terminal/text_layout.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

constexpr std::size_t longest_error = 2000;

int fail(int status, const std::string& what) {
  std::fflush(stdout);
  fmt::print(stderr, "topkv: error: {}\n", one_line(printable(what), longest_error));
  return status;
}

int usage_error(const std::string& what, const std::string& command) {
  const std::string help = command.empty() ? "topkv --help" : "topkv " + command + " --help";
  return fail(exit_usage, fmt::format("{} (see {})", what, help));
}

using Commands = std::map<std::string, Run>;

std::vector<std::string> names_of(const Commands& commands) {
  std::vector<std::string> names = {"help"};
  for (const auto& [name, run] : commands) names.push_back(name);
  return names;
}

// Throws UsageError for a first argument that is neither a command nor a flag of topkv itself.
void check_command(const CLI::App& app, const Commands& commands,
                   std::span<const char* const> words) {
  if (words.empty()) throw UsageError("no command given; expected one, such as topkv needle");
  const std::string first = words.front();
  if (!first.empty() && first.front() == '-') {
    if (first == "-h" || first == "--help" || first == "--version") return;
    throw UsageError(fmt::format("unknown flag {} before a command{}", first,
                                 did_you_mean(nearest(first, flags_of(app)))));
  }
  if (commands.contains(first)) return;
  throw UsageError(fmt::format("unknown command '{}'{}", first,
                               did_you_mean(nearest(first, names_of(commands)))));
}

// Of the lines there, as far as prose reads well.
std::size_t help_width() { return std::clamp<std::size_t>(page_width(stdout), 40, 100); }

// topkv help [COMMAND]
int show_help(const CLI::App& app, const Commands& commands, std::span<const char* const> words) {
  if (words.empty()) {
    fmt::print("{}", main_help_text(help_width()));
    return 0;
  }
  if (words.size() > 1) {
    throw UsageError(
        fmt::format("help: expected one command, found '{}' after '{}'", words[1], words[0]));
  }
  const std::string name = words.front();
  if (name == "help") return show_help(app, commands, {});
  if (!commands.contains(name)) {
    throw UsageError(fmt::format("help: unknown command '{}'{}", name,
                                 did_you_mean(nearest(name, names_of(commands)))));
  }
  fmt::print("{}", app.get_subcommand(name)->help());
  return 0;
}

int written(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  return fail(exit_error, "standard output cannot be written");
}

}  // namespace

CLI::App* add_command(CLI::App& app, const char* name) {
  CLI::App* command = app.add_subcommand(name);
  command->formatter_fn([name](const CLI::App*, const std::string&, CLI::AppFormatMode) {
    return help_text(help_of(name), help_width());
  });
  return command;
}

int run_app(int argc, const char* const* argv) {
  CLI::App app("topkv");
  app.formatter_fn([](const CLI::App*, const std::string&, CLI::AppFormatMode) {
    return main_help_text(help_width());
  });
  app.set_version_flag("--version", "topkv " + version());
  app.require_subcommand(0, 1);
  Commands commands;
  for (const Command& command : all_commands) commands[command.name] = command.add(app);
  const std::span<const char* const> words(argv + std::min(argc, 1), argv + argc);
  std::string name;  // of the command, once it is known
  try {
    if (!words.empty() && std::string_view(words.front()) == "help") {
      return written(show_help(app, commands, words.subspan(1)));
    }
    check_command(app, commands, words);
    if (commands.contains(words.front())) {
      name = words.front();
      check_command_line(*app.get_subcommand(name), words.subspan(1));
    }
    app.parse(argc, argv);
    return written(commands.at(name)());
  } catch (const CLI::Success& success) {  // --help, --version
    return written(app.exit(success));
  } catch (const CLI::ParseError& error) {
    return usage_error(error.what(), name);
  } catch (const UsageError& error) {
    return usage_error(error.what(), name);
  } catch (const InvalidArgument& error) {  // what only the library could find
    return usage_error(error.what(), name);
  } catch (const Error& error) {
    return fail(exit_error, error.what());
  } catch (const Interrupted&) {
    return fail(interrupted_status(), "interrupted");
  } catch (const std::bad_alloc&) {
    return fail(exit_error, "out of host memory; ask for fewer tokens or free memory");
  } catch (const std::exception& error) {
    return fail(exit_error, error.what());
  }
}

}  // namespace topkv::cli
