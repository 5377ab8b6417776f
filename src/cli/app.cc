#include "src/cli/app.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/help.h"
#include "src/cli/interrupt.h"
#include "src/cli/numbers.h"
#include "src/cli/options.h"
#include "src/cli/report.h"
#include "src/cli/suggest.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

constexpr std::size_t longest_error = 2000;

int fail(int status, const std::string& what) {
  std::fflush(stdout);
  fmt::print(stderr, "topkv: error: {}\n", one_line(what, longest_error));
  return status;
}

int usage_error(const std::string& what, const std::string& command) {
  const std::string help = command.empty() ? "topkv --help" : "topkv " + command + " --help";
  return fail(exit_usage, fmt::format("{} (see {})", what, help));
}

std::string hint(const std::string& near) {
  return near.empty() ? "" : fmt::format("; did you mean {}?", near);
}

std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

// What the command did not understand, in words.
std::string unexpected(const CLI::App& command, const std::vector<std::string>& left) {
  const auto flag = std::find_if(left.begin(), left.end(), [](const std::string& text) {
    return text.size() > 1 && text.front() == '-';
  });
  if (flag == left.end()) {
    return fmt::format("unexpected argument '{}'", left.empty() ? "" : left.front());
  }
  const std::string name = flag->substr(0, flag->find('='));
  return fmt::format("unknown flag {}{}", name, hint(nearest(name, flags_of(command))));
}

// A first argument that is no command; CLI11 would only say that one is required.
std::string wrong_command(const CLI::App& app, int argc, const char* const* argv) {
  if (argc < 2) return "no command given";
  const std::string first = argv[1];
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  if (!first.empty() && first.front() == '-') {
    if (first == "-h" || first == "--help" || first == "--version") return {};
    return fmt::format("unknown flag {} before a command{}", first,
                       hint(nearest(first, flags_of(app))));
  }
  if (std::find(names.begin(), names.end(), first) != names.end()) return {};
  return fmt::format("unknown command '{}'{}", first, hint(nearest(first, names)));
}

}  // namespace

CLI::App* add_command(CLI::App& app, const char* name, const char* help) {
  CLI::App* command = app.add_subcommand(name);
  command->formatter_fn([help](const CLI::App*, const std::string&, CLI::AppFormatMode) {
    return std::string(help);
  });
  return command;
}

int run_app(int argc, const char* const* argv) {
  CLI::App app("topkv");
  app.formatter_fn([](const CLI::App*, const std::string&, CLI::AppFormatMode) {
    return std::string(main_help);
  });
  app.set_version_flag("--version", "topkv " + version());
  app.require_subcommand(0, 1);
  const std::map<std::string, Run> commands = {{"needle", add_needle(app)},
                                               {"generate", add_generate(app)},
                                               {"info", add_info(app)},
                                               {"bench", add_bench(app)}};
  if (const std::string wrong = wrong_command(app, argc, argv); !wrong.empty()) {
    return usage_error(wrong, "");
  }
  std::string name;
  const auto used = [&] { return app.get_subcommands().front(); };
  try {
    app.parse(argc, argv);
    name = used()->get_name();
    const int status = commands.at(name)();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      return fail(exit_error, "standard output cannot be written");
    }
    return status;
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    if (app.get_subcommands().empty()) return usage_error(error.what(), "");
    // A mistyped flag may also be why another is missing: it is what to tell.
    const std::vector<std::string> left = used()->remaining();
    return usage_error(left.empty() ? error.what() : unexpected(*used(), left), used()->get_name());
  } catch (const UsageError& error) {
    return usage_error(error.what(), name);
  } catch (const Error& error) {
    return fail(exit_error, error.what());
  } catch (const Interrupted&) {
    return fail(interrupted_status(), "interrupted");
  } catch (const std::bad_alloc&) {
    return fail(exit_error, "out of host memory");
  } catch (const std::exception& error) {
    return fail(exit_error, error.what());
  }
}

}  // namespace topkv::cli
