// The words of a command line, checked against a command's flags before CLI11 reads them: unknown
// and repeated flags, values that are missing or empty. CLI11 would take the next flag for a
// missing value, and the next word for an empty one.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace topkv::cli {

/// words: those behind the command's name. Throws UsageError. An option's description is what a
/// message says was expected.
void check_command_line(const CLI::App& command, std::span<const char* const> words);

/// The names of all flags, with their dashes.
std::vector<std::string> flags_of(const CLI::App& command);

}  // namespace topkv::cli
