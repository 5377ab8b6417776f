// Whole files, read and written with errors that name the path.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace topkv {

/// Throws FileError for a file that cannot be read, or a directory. Does not open it: what comes
/// through a pipe can be opened once.
void check_readable(const std::filesystem::path& path);

/// Throws FileError where write_file could not put a file: only a regular file is replaced, and its
/// folder must be there. Changes nothing.
void check_writable(const std::filesystem::path& path);

/// The file's bytes. Throws FileError.
std::string read_file(const std::filesystem::path& path);

/// Likewise of one that nobody vouches for: a regular file (no pipe to wait for, no device without
/// end) of `most` bytes at most. Nothing of a longer one is read. Throws FileError.
std::string read_regular_file(const std::filesystem::path& path, std::int64_t most);

/// Everything on standard input. Throws FileError.
std::string read_stdin();

/// Replaces the file in one step, as a ReplacingFile does. Throws FileError.
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace topkv
