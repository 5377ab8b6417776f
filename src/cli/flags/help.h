// The table of commands and flags, and how --help prints it. The parser takes flags from the table
// (bind.h), and so do the manual page, completions in a shell and run.json.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "src/cli/flags/flag.h"

namespace topkv::cli {

struct FlagGroup {
  std::string title;
  std::vector<Flag> flags;
};

struct CommandHelp {
  std::string name;
  std::string summary;  ///< in one line
  std::string usage;    ///< what follows the name
  std::string about;
  std::vector<FlagGroup> groups;
  std::vector<std::string> examples;  ///< command lines
  std::vector<Flag> operand = {};     ///< what stands there without a flag; at most one
};

/// Of all commands, in the order of the main help. Made once.
const std::vector<CommandHelp>& all_help();

/// Throws std::out_of_range for what is no command.
const CommandHelp& help_of(std::string_view command);

/// A flag by its long name; null if the groups have no such flag.
const Flag* find_flag(const std::vector<FlagGroup>& groups, std::string_view name);

/// The parts of all_help.
std::vector<CommandHelp> model_commands();
std::vector<CommandHelp> tool_commands();

/// What topkv says of itself as a whole.
inline constexpr const char* main_about =
    "Runs language models over contexts of a million tokens. Keys and values stay in host memory. "
    "Each step attends to the first and last tokens and to the rows that an index finds.";
inline constexpr const char* main_numbers =
    "Counts of tokens and sizes use powers of 1024 (4K = 4096, 8G = 8GiB). KB, MB, GB and TB are "
    "powers of 1000.";

/// As they are printed; no line is wider than `width`, from 40, but for words that are.
std::string help_text(const CommandHelp& command, std::size_t width);
std::string main_help_text(std::size_t width);

}  // namespace topkv::cli
