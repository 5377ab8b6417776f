// A file mapped into memory, read-only.
//
// Ownership: the mapping lives as long as the MappedFile; moving it leaves the bytes where they
// are. Threads: the bytes may be read from many threads at once. The file must not be changed while
// it is mapped: reading a page that was cut off the file ends the process with SIGBUS. Replace a
// file by renaming a new one over it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace topkv {

/// Whether there is anything at the path, symbolic links followed. True as well when that cannot be
/// found out: opening it then says why.
bool file_exists(const std::filesystem::path& path);

class MappedFile {
 public:
  /// Maps the whole of a regular file; symbolic links are followed, an empty file has no bytes.
  /// Throws FileError when it is missing, not a regular file or cannot be mapped.
  static MappedFile open(const std::filesystem::path& path);

  /// Of a file that is open, which may be closed then. path: for messages.
  static MappedFile of(int file, std::int64_t bytes, const std::filesystem::path& path);

  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace topkv
