// Files that commands write: never one that the same command reads.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace topkv::cli {

/// What a flag has a command read: a file, a directory, or "-" for standard input.
struct Input {
  std::string flag;
  std::filesystem::path path;
};

/// The model with the files in its directory that loading may read, and what a flag names if that
/// is a directory of texts, with its *.txt and *.md, as haystacks are read.
std::vector<Input> inputs_of(const std::string& model, const std::string& flag = {},
                             const std::string& texts = {});

/// Throws UsageError where `output` is one of the inputs by whatever name: the same device and
/// inode, links followed.
void check_not_read(std::string_view flag, const std::filesystem::path& output,
                    const std::vector<Input>& inputs);

/// Of a file to write: throws that, UsageError for "-", which is no stream here, and FileError
/// where no file can be put.
void check_output(std::string_view flag, const std::string& file, const std::vector<Input>& inputs);

/// Of a directory for results: throws UsageError where it, or one of the files to write in it, is
/// an input.
void check_output_directory(const std::string& directory, const std::vector<std::string>& names,
                            const std::vector<Input>& inputs);

}  // namespace topkv::cli
