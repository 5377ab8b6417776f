// The command line as a whole: help that fits a screen and tells every flag.

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "src/cli/arguments.h"
#include "src/cli/commands.h"
#include "src/cli/help.h"
#include "src/cli/numbers.h"
#include "tests/temp_directory.h"

namespace topkv::cli {
namespace {

std::size_t characters(const std::string& line) {
  return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
  }));
}

std::set<std::string> long_flags_in(const std::string& text) {
  const std::regex flag("--[a-z][a-z-]*");
  return {std::sregex_token_iterator(text.begin(), text.end(), flag), {}};
}

struct Command {
  const char* name;
  Run (*add)(CLI::App&);
  const char* help;
};

std::vector<CLI::Option*> all_options(CLI::App& command) {
  return command.get_options([](const CLI::Option*) { return true; });
}

// Whatever comes, every flag is refused in the same form.
TEST(Arguments, EveryFlagWithAValueTellsWhatItExpects) {
  for (const auto add : {add_needle, add_generate, add_chat, add_prefill, add_ask, add_fidelity,
                         add_perplexity, add_eval, add_bench}) {
    CLI::App app("topkv");
    add(app);
    CLI::App& command = *app.get_subcommands({}).front();
    for (CLI::Option* option : all_options(command)) {
      if (option->get_items_expected_max() == 0) continue;
      EXPECT_NE(option->get_description(), "") << option->get_name();
      if (option->get_lnames().empty()) continue;
      const std::string flag = option->get_name();
      const std::string empty = flag + "=";
      for (const std::vector<const char*>& words : {std::vector<const char*>{flag.c_str()},
                                                    {flag.c_str(), ""},
                                                    {empty.c_str()},
                                                    {flag.c_str(), "--device", "cpu"}}) {
        if (flag == "--device" && words.size() == 3) continue;
        expect_error<UsageError>([&] { check_arguments(command, words); }, flag + ": ",
                                 {"expected " + option->get_description()});
      }
    }
  }
}

TEST(Arguments, AreWhatCli11WillTakeThemFor) {
  CLI::App app("topkv");
  add_generate(app);
  const CLI::App& command = *app.get_subcommands({}).front();
  const auto taken = [&](std::vector<const char*> words) { check_arguments(command, words); };
  taken({"-m", "dir", "-p", "-nice", "--json"});
  taken({"-mdir", "--prompt=--ctx", "-f", "-", "-f", "b", "--seed", "-1"});  // -1: parse_seed's
  taken({"--help", "--nonsense"});
  taken({"-m", "dir", "-p", "- a list", "-t4"});
  const auto refused = [&](std::vector<const char*> words, const std::string& start,
                           const std::vector<std::string_view>& parts) {
    expect_error<UsageError>([&] { check_arguments(command, words); }, start, parts);
  };
  refused({"-m", "a", "-m", "b", "-p", "x"}, "-m: given twice", {"'a'", "'b'", "once"});
  refused({"-m", "a", "--model=b", "-p", "x"}, "--model: given twice", {});
  refused({"-m", "a", "-p", "x", "--json=no"}, "--json: takes no value", {"'no'"});
  refused({"-m", "a", "-p", "-f", "x"}, "-p: a value is missing", {"-f", "--prompt=-f"});
  refused({"-m", "a", "-p", "x", "y"}, "unexpected argument 'y'", {});
  refused({"-m", "a", "-p", "x", "--", "-y"}, "unexpected argument '-y'", {});
  refused({"-p", "x", "--modle", "a"}, "unknown flag --modle", {"did you mean --model?"});
  refused({"-p", "x", "-z"}, "unknown flag -z", {});
  refused({"-p", "x"}, "--model is missing", {"expected the directory of a model"});
}

class Help : public testing::TestWithParam<Command> {};

TEST_P(Help, FitsOneScreenAndEndsWithTwoExamples) {
  std::istringstream text(GetParam().help);
  std::string line;
  std::vector<std::string> lines;
  while (std::getline(text, line)) {
    EXPECT_LE(characters(line), 100U) << line;
    lines.push_back(line);
  }
  EXPECT_LE(lines.size(), 28U);
  ASSERT_GE(lines.size(), 3U);
  EXPECT_EQ(lines[lines.size() - 3], "examples:");
}

TEST_P(Help, TellsEveryFlagOfTheCommandAndNoOther) {
  CLI::App app("topkv");
  GetParam().add(app);
  std::set<std::string> registered = {};
  for (const CLI::Option* option : app.get_subcommand(GetParam().name)->get_options()) {
    for (const std::string& name : option->get_lnames()) registered.insert("--" + name);
    for (const std::string& name : option->get_snames()) {
      if (name == "h") continue;
      EXPECT_NE(std::string(GetParam().help).find(" -" + name + ", "), std::string::npos) << name;
    }
  }
  registered.erase("--help");
  EXPECT_EQ(long_flags_in(GetParam().help), registered);
}

INSTANTIATE_TEST_SUITE_P(Commands, Help,
                         testing::Values(Command{"needle", add_needle, needle_help},
                                         Command{"generate", add_generate, generate_help},
                                         Command{"chat", add_chat, chat_help},
                                         Command{"prefill", add_prefill, prefill_help},
                                         Command{"ask", add_ask, ask_help},
                                         Command{"verify", add_verify, verify_help},
                                         Command{"info", add_info, info_help},
                                         Command{"plan", add_plan, plan_help},
                                         Command{"fidelity", add_fidelity, fidelity_help},
                                         Command{"perplexity", add_perplexity, perplexity_help},
                                         Command{"eval", add_eval, eval_help},
                                         Command{"bench", add_bench, bench_help}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace topkv::cli
