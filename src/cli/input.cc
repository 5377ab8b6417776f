#include "src/cli/input.h"

#include <fmt/format.h>

#include <cstdio>
#include <iostream>

#include "src/cli/interrupt.h"
#include "src/cli/text.h"
#include "src/core/files.h"
#include "topkv/error.h"

namespace topkv::cli {

std::string text_of_files(const std::vector<std::string>& files) {
  std::string text;
  for (const std::string& file : files) text += file == "-" ? read_stdin() : read_file(file);
  if (!files.empty() && text.empty()) {
    throw FileError(fmt::format("{}: no text in it", printable(files.front())));
  }
  return text;
}

std::optional<std::string> next_line(bool prompts) {
  const WaitsForPerson waiting;
  stop_if_interrupted();
  if (prompts) fmt::print(stderr, "> ");
  std::string line;
  if (std::getline(std::cin, line)) return line;
  if (prompts) fmt::print(stderr, "\n");
  if (std::cin.bad()) throw FileError("standard input: cannot be read");
  return std::nullopt;
}

}  // namespace topkv::cli
