// What --help, the manual page and completions in a shell say of each command, as data: one source
// for all of them. A test checks that every flag is in it, and no other.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace topkv::cli {

struct FlagHelp {
  std::string names;  ///< "-m, --model"; of a positional argument its place in the usage, "FILE"
  std::string value;  ///< what follows, such as FILE (a path), DIR (a folder) or N; empty: nothing
  std::string meaning;                    ///< begins in lower case, as what is said behind a colon
  std::string otherwise = {};             ///< what holds without it; empty: told by the meaning
  std::vector<std::string> choices = {};  ///< values to complete
};

struct FlagGroup {
  std::string title;
  std::vector<FlagHelp> flags;
};

struct CommandHelp {
  std::string name;
  std::string summary;  ///< in one line
  std::string usage;    ///< what follows the name
  std::string about;
  std::vector<FlagGroup> groups;
  std::vector<std::string> examples;  ///< command lines
  /// What stands there without a flag: parts of "DIR|FILE.tkv" (a model, a context), or words.
  std::string operand = {};
};

/// Of all commands, in the order of the main help. Made once.
const std::vector<CommandHelp>& all_help();

/// Throws std::out_of_range for what is no command.
const CommandHelp& help_of(std::string_view command);

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

/// The flags' names, each with its dashes: of "-m, --model" two.
std::vector<std::string> names_of(const FlagHelp& flag);

}  // namespace topkv::cli
