// The command line as a whole: help that fits a screen and tells every flag.

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "src/cli/commands.h"
#include "src/cli/flags/command_line.h"
#include "src/cli/flags/help.h"
#include "src/cli/terminal/parse_numbers.h"
#include "tests/support/temp_directory.h"

namespace topkv::cli {

static void PrintTo(const Command& command, std::ostream* out) { *out << command.name; }

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

std::vector<CLI::Option*> all_options(CLI::App& command) {
  return command.get_options([](const CLI::Option*) { return true; });
}

// Whatever comes, every flag is refused in the same form.
TEST(Arguments, EveryFlagWithAValueTellsWhatItExpects) {
  for (const auto add : {add_needle, add_generate, add_chat, add_prefill, add_ask, add_serve,
                         add_fidelity, add_perplexity, add_eval, add_bench}) {
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
        expect_error<UsageError>([&] { check_command_line(command, words); }, flag + ": ",
                                 {"expected " + option->get_description()});
      }
    }
  }
}

TEST(Arguments, AreWhatCli11WillTakeThemFor) {
  CLI::App app("topkv");
  add_generate(app);
  const CLI::App& command = *app.get_subcommands({}).front();
  const auto taken = [&](std::vector<const char*> words) { check_command_line(command, words); };
  taken({"-m", "dir", "-p", "-nice", "--json"});
  taken({"-mdir", "--prompt=--ctx", "-f", "-", "-f", "b", "--seed", "-1"});  // -1: parse_seed's
  taken({"--help", "--nonsense"});
  taken({"-m", "dir", "-p", "- a list", "-t4"});
  const auto refused = [&](std::vector<const char*> words, const std::string& start,
                           const std::vector<std::string_view>& parts) {
    expect_error<UsageError>([&] { check_command_line(command, words); }, start, parts);
  };
  refused({"-m", "a", "-m", "b", "-p", "x"}, "-m: given twice", {"'a'", "'b'", "once"});
  refused({"-m", "a", "--model=b", "-p", "x"}, "--model: given twice", {});
  refused({"-m", "a", "-p", "x", "--json=no"}, "--json: takes no value", {"'no'"});
  refused({"-m", "a", "-p", "-f", "x"}, "-p: a value is missing", {"-f", "--prompt=-f"});
  refused({"-m", "a", "-p", "x", "y"}, "unexpected argument 'y'",
          {"-p takes one value", "in quotes"});
  refused({"-m", "a", "-p", "x", "-f", "a", "b"}, "unexpected argument 'b'",
          {"-f takes one value: write -f before each"});
  refused({"-m", "a", "-p", "x", "--stop=a", "b"}, "unexpected argument 'b'",
          {"--stop takes one value: write --stop before each, and a text with spaces in quotes"});
  refused({"-m", "a", "-p", "x", "--", "-y"}, "unexpected argument '-y'", {});
  refused({"-p", "x", "--modle", "a"}, "unknown flag --modle", {"did you mean --model?"});
  refused({"-p", "x", "-z"}, "unknown flag -z", {});
  refused({"-p", "x"}, "--model is missing", {"expected the directory of a model"});
}

class Help : public testing::TestWithParam<Command> {};

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST_P(Help, KeepsWithinTheWidthAndSaysTheSameAtEach) {
  const CommandHelp& help = help_of(GetParam().name);
  const auto words = [](std::string text) {
    std::erase(text, '\\');  // of examples on several lines
    std::istringstream stream(text);
    return std::vector<std::string>(std::istream_iterator<std::string>(stream), {});
  };
  for (const std::size_t width : {40U, 64U, 80U, 100U}) {
    const std::string text = help_text(help, width);
    EXPECT_EQ(words(text), words(help_text(help, 1000))) << width;
    for (const std::string& line : lines_of(text)) {
      const bool one_word =
          line.find_first_of(" ", line.find_first_not_of(" ")) == std::string::npos;
      const bool quoted = line.find_first_of("\"'{") != std::string::npos;  // is not broken
      EXPECT_TRUE(characters(line) <= width || one_word || quoted) << line;
      if (width >= 80) {
        EXPECT_LE(characters(line), width) << line;
      }
    }
  }
}

TEST_P(Help, HasExamplesThatAShellReadsAsOneLine) {
  const CommandHelp& help = help_of(GetParam().name);
  ASSERT_EQ(help.examples.size(), 2U);
  std::string text = help_text(help, 60);
  text = std::regex_replace(text, std::regex(" \\\\\n +"), " ");
  for (const std::string& example : help.examples)
    EXPECT_NE(text.find("\n  " + example + "\n"), std::string::npos) << text;
}

// A flag of the table that no variable is bound to would be refused.
TEST_P(Help, TellsEveryFlagOfTheCommandAndNoOther) {
  CLI::App app("topkv");
  GetParam().add(app);
  std::map<std::string, const CLI::Option*> registered;
  for (const CLI::Option* option : all_options(*app.get_subcommand(GetParam().name))) {
    for (const std::string& name : option->get_lnames()) registered["--" + name] = option;
    for (const std::string& name : option->get_snames()) registered["-" + name] = option;
  }
  registered.erase("--help");
  registered.erase("-h");
  for (const std::string& flag : long_flags_in(help_text(help_of(GetParam().name), 80)))
    EXPECT_TRUE(registered.contains(flag)) << flag;
  for (const FlagGroup& group : help_of(GetParam().name).groups) {
    for (const Flag& flag : group.flags) {
      for (const std::string& name : names_of(flag))
        EXPECT_EQ(registered.erase(name), 1U) << name << " is not bound, or told twice";
    }
  }
  EXPECT_TRUE(registered.empty()) << registered.begin()->first;
}

INSTANTIATE_TEST_SUITE_P(Commands, Help, testing::ValuesIn(all_commands),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(MainHelp, NamesEveryCommandWithinTheWidth) {
  for (const std::size_t width : {40U, 80U}) {
    const std::string text = main_help_text(width);
    for (const CommandHelp& command : all_help())
      EXPECT_NE(text.find("\n  " + command.name + " "), std::string::npos) << command.name;
    for (const std::string& line : lines_of(text))
      EXPECT_TRUE(characters(line) <= width || line.find('"') != std::string::npos) << line;
  }
}

}  // namespace
}  // namespace topkv::cli
