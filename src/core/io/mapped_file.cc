#include "src/core/io/mapped_file.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "src/core/io/open_file.h"
#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* action, int error) {
  throw FileError(fmt::format("{}: cannot be {}: {}", path_text(path), action,
                              std::generic_category().message(error)));
}

}  // namespace

bool file_exists(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) || error;
}

MappedFile MappedFile::open(const std::filesystem::path& path) {
  const ReadableFile file(path);
  return of(file.handle(), file.bytes(), path);
}

MappedFile MappedFile::of(int fd, std::int64_t bytes, const std::filesystem::path& path) {
  MappedFile file;
  file.path_ = path;
  const auto size = static_cast<std::size_t>(bytes);
  if (size == 0) return file;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) fail(path, "mapped into memory", errno);
  file.bytes_ = {static_cast<const std::byte*>(data), size};
  return file;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace topkv
