// A regular file that is read at places, and one that takes another's place when it is whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <utility>

namespace topkv {

/// A file descriptor, closed when it goes.
class FileHandle {
 public:
  FileHandle() = default;
  explicit FileHandle(int file) : file_(file) {}
  ~FileHandle();
  FileHandle(FileHandle&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  int get() const { return file_; }

 private:
  int file_ = -1;
};

/// Safe from many threads.
class ReadableFile {
 public:
  /// Throws FileError where there is no regular file that can be read.
  explicit ReadableFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// When it was opened.
  std::int64_t bytes() const { return bytes_; }
  int handle() const { return file_.get(); }
  /// Throws FileError where so many bytes cannot be read.
  void read(void* to, std::int64_t bytes, std::int64_t at) const;

 private:
  std::filesystem::path path_;
  FileHandle file_;
  std::int64_t bytes_ = 0;
};

/// A file beside the one that it is to replace, which stays as it is until commit and is whole at
/// any time, whenever the process or the system ends. What was begun and not committed is removed:
/// at once where an exception ends the work, else when the same file is replaced the next time
/// (where the file system has locks). It has the other's permissions; owner and lists of access are
/// new. Members are safe from many threads but for commit.
class ReplacingFile {
 public:
  /// Room for so many bytes is taken now. Throws FileError, naming the path, the call's error and,
  /// where there is no room, what was wanted.
  ReplacingFile(const std::filesystem::path& path, std::int64_t bytes);
  ~ReplacingFile();
  ReplacingFile(const ReplacingFile&) = delete;  // it removes what it began
  ReplacingFile& operator=(const ReplacingFile&) = delete;

  /// Throws FileError.
  void write(const void* from, std::int64_t bytes, std::int64_t at);
  /// Waits until what was written is on the disk. Throws FileError.
  void sync();
  /// sync(), and it takes the other's place; the folder is synced, too. Throws FileError, and the
  /// other is then as it was, but where the folder could not be synced.
  void commit();

 private:
  [[noreturn]] void fail(const char* doing, int error) const;
  void remove_rubbish() const;
  void begin();

  std::filesystem::path path_;
  std::filesystem::path part_;  // empty: committed
  std::int64_t bytes_;
  FileHandle file_;
};

/// Throws FileError where a ReplacingFile of about so many bytes could not be begun now: it begins
/// one without room, removes it, and asks what is free. Other work may take that meanwhile.
void check_room(const std::filesystem::path& path, std::int64_t bytes);

}  // namespace topkv
