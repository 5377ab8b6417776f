// The command line as a whole: help that fits a screen and tells every flag.

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "src/cli/commands.h"
#include "src/cli/help.h"

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
                                         Command{"info", add_info, info_help},
                                         Command{"bench", add_bench, bench_help}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace topkv::cli
