#include "src/core/io/files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "src/core/io/open_file.h"
#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv {

namespace {

[[noreturn]] void fail_to_write(const std::filesystem::path& path, const std::string& why) {
  throw FileError(fmt::format("{}: cannot be written: {}", path_text(path), why));
}

[[noreturn]] void fail_to_read(const std::filesystem::path& path) {
  throw FileError(fmt::format("{}: cannot be read: {}", path_text(path), std::strerror(errno)));
}

}  // namespace

void check_readable(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw FileError(fmt::format("{}: is a directory; expected a file", path_text(path)));
  }
  if (::access(path.c_str(), R_OK) != 0) fail_to_read(path);
}

void check_writable(const std::filesystem::path& path) {
  std::error_code error;
  const auto type = std::filesystem::symlink_status(path, error).type();
  if (type == std::filesystem::file_type::directory || !path.has_filename()) {
    throw FileError(fmt::format("{}: is a directory; expected a file", path_text(path)));
  }
  const bool is_new = type == std::filesystem::file_type::not_found;
  if (!is_new && error) fail_to_write(path, error.message());
  if (!is_new && type != std::filesystem::file_type::regular) {
    fail_to_write(path,
                  "is a device, pipe or link; expected a new file or a regular one to replace");
  }
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  if (::access((parent / "").c_str(), W_OK | X_OK) != 0) {
    fail_to_write(path, fmt::format("its folder: {}", std::strerror(errno)));
  }
}

std::string read_file(const std::filesystem::path& path) {
  check_readable(path);
  std::ifstream in(path, std::ios::binary);
  if (!in) fail_to_read(path);
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (in.read(buffer.data(), buffer.size()) || in.gcount() > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (in.bad()) throw FileError(fmt::format("{}: cannot be read", path_text(path)));
  return text;
}

std::string read_regular_file(const std::filesystem::path& path, std::int64_t most) {
  const ReadableFile file(path);
  if (file.bytes() > most) {
    throw FileError(
        fmt::format("{}: has {} bytes; expected at most {}", path_text(path), file.bytes(), most));
  }
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  file.read(text.data(), file.bytes(), 0);
  return text;
}

std::string read_stdin() {
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), stdin)) {
    text.append(buffer.data(), got);
  }
  if (std::ferror(stdin) != 0) throw FileError("standard input: cannot be read");
  return text;
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  ReplacingFile file(path, std::ssize(text));
  file.write(text.data(), std::ssize(text), 0);
  file.commit();
}

}  // namespace topkv
