#include "src/cli/files.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "topkv/error.h"

namespace topkv::cli {

std::string read_file(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw FileError(fmt::format("{}: is a directory; expected a file", path.string()));
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) throw FileError(fmt::format("{}: {}", path.string(), std::strerror(errno)));
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (in.read(buffer.data(), buffer.size()) || in.gcount() > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (in.bad()) throw FileError(fmt::format("{}: cannot be read", path.string()));
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
  std::filesystem::path part = path;
  part += ".part";
  {
    errno = 0;
    std::ofstream out(part, std::ios::binary | std::ios::trunc);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    out.close();
    if (!out) {
      throw FileError(fmt::format("{}: cannot be written: {}", path.string(),
                                  errno != 0 ? std::strerror(errno) : "write error"));
    }
  }
  std::error_code error;
  std::filesystem::rename(part, path, error);
  if (error)
    throw FileError(fmt::format("{}: cannot be written: {}", path.string(), error.message()));
}

}  // namespace topkv::cli
