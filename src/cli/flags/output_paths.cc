#include "src/cli/flags/output_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "src/cli/terminal/parse_numbers.h"
#include "src/core/io/files.h"
#include "src/core/text/printable.h"

namespace topkv::cli {
namespace {

namespace fs = std::filesystem;

/// The path itself, and what lies in it, where it is a directory, with one of these extensions.
void add_files(std::vector<Input>& inputs, const std::string& flag, const fs::path& path,
               std::initializer_list<std::string_view> extensions) {
  inputs.push_back({flag, path});
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    if (std::ranges::find(extensions, at->path().extension().string()) != extensions.end())
      inputs.push_back({flag, at->path()});
  }
}

}  // namespace

std::vector<Input> inputs_of(const std::string& model, const std::string& flag,
                             const std::string& texts) {
  std::vector<Input> inputs;
  add_files(inputs, "-m", model, {".json", ".jinja", ".safetensors"});
  std::error_code error;
  if (fs::is_directory(texts, error)) add_files(inputs, flag, texts, {".txt", ".md"});
  return inputs;
}

void check_not_read(std::string_view flag, const fs::path& output,
                    const std::vector<Input>& inputs) {
  for (const Input& input : inputs) {
    const bool piped = input.path == "-";
    std::error_code error;  // one of them is not there: not the same
    if (!fs::equivalent(output, piped ? fs::path("/dev/stdin") : input.path, error)) continue;
    throw UsageError(fmt::format(
        "{}: expected a path that the command does not read, found '{}', which is {} of {}", flag,
        printable(output.string()),
        piped ? "the standard input" : fmt::format("'{}'", printable(input.path.string())),
        input.flag));
  }
}

void check_output(std::string_view flag, const std::string& file,
                  const std::vector<Input>& inputs) {
  if (file == "-") {
    throw UsageError(
        fmt::format("{}: expected a file to write, found '-'; it cannot be standard output, and a "
                    "file of that name is ./-",
                    flag));
  }
  check_not_read(flag, file, inputs);
  check_writable(file);
}

void check_output_directory(const std::string& directory, const std::vector<std::string>& names,
                            const std::vector<Input>& inputs) {
  check_not_read("-o", directory, inputs);
  for (const std::string& name : names) check_not_read("-o", fs::path(directory) / name, inputs);
}

}  // namespace topkv::cli
