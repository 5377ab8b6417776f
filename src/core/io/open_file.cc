#include "src/core/io/open_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <random>
#include <string>
#include <system_error>

#include "src/core/io/file_calls.h"
#include "src/core/io/files.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t most_at_once = std::int64_t{1} << 30;  // what a call takes differs

std::string message_of(int error) { return std::generic_category().message(error); }

constexpr std::string_view part_ending = ".topkv-part";
constexpr std::size_t part_digits = 8;
constexpr std::size_t longest_name = 255;  // bytes, of most file systems

/// A part's name begins so: with that of the file, or as much of it as leaves room for the rest.
/// (Two files may then have parts of one beginning; a part that is written has its lock.)
std::string prefix_of(const std::filesystem::path& path) {
  constexpr std::size_t most = longest_name - 2 - part_digits - part_ending.size();
  std::string name = path.filename().string();
  if (name.size() > most) {
    std::size_t end = most;
    while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0U) == 0x80U)
      --end;  // within a character of UTF-8
    name.resize(end > 0 ? end : most);
  }
  return "." + name + ".";
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// call() until a signal does not interrupt it.
template <class Call>
int uninterrupted(const Call& call) {
  for (;;) {
    const int result = call();
    if (result == 0 || errno != EINTR) return result;
  }
}

/// call(done): one of pread and pwrite for what is left; 0 bytes are `ended`.
template <class Call, class Fail>
void transfer(std::int64_t bytes, const Call& call, const Fail& fail, const char* ended) {
  for (std::int64_t done = 0; done < bytes;) {
    const ssize_t got = call(done, static_cast<std::size_t>(std::min(bytes - done, most_at_once)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(message_of(errno));
    if (got == 0) fail(ended);
    done += got;
  }
}

}  // namespace

FileHandle::~FileHandle() {
  if (file_ >= 0) file_calls().close(file_);
}

ReadableFile::ReadableFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: opening a named pipe must fail below, not wait for a writer.
  file_ = FileHandle(file_calls().open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0));
  if (file_.get() < 0)
    throw FileError(fmt::format("{}: cannot be opened: {}", path_text(path), message_of(errno)));
  struct stat status = {};
  if (::fstat(file_.get(), &status) != 0)
    throw FileError(fmt::format("{}: cannot be examined: {}", path_text(path), message_of(errno)));
  if (!S_ISREG(status.st_mode))
    throw FileError(fmt::format("{}: is not a regular file; expected one", path_text(path)));
  bytes_ = status.st_size;
}

void ReadableFile::read(void* to, std::int64_t bytes, std::int64_t at) const {
  transfer(
      bytes,
      [&](std::int64_t done, std::size_t count) {
        return file_calls().pread(file_.get(), static_cast<std::byte*>(to) + done, count,
                                  at + done);
      },
      [&](const std::string& why) {
        throw FileError(
            fmt::format("{}: {} bytes at {} cannot be read: {}", path_text(path_), bytes, at, why));
      },
      "the file ends before them");
}

ReplacingFile::ReplacingFile(const std::filesystem::path& path, std::int64_t bytes)
    : path_(path), bytes_(bytes) {
  check_writable(path);
  remove_rubbish();
  try {
    begin();
    int error = bytes > 0 ? EINTR : 0;
    while (error == EINTR) error = file_calls().allocate(file_.get(), bytes);
    if (error != 0) fail("given room", error);
  } catch (...) {
    if (!part_.empty()) file_calls().unlink(part_.c_str());
    throw;
  }
}

/// Opens a part of a name that is new, and holds a lock while it is written: whoever finds one that
/// is not locked may remove it, and may do so before this one has its lock.
void ReplacingFile::begin() {
  // As open to others as what it replaces, from its first byte on.
  struct stat old = {};
  const bool replaces = ::stat(path_.c_str(), &old) == 0;
  const int mode = replaces ? 0600 : 0666;
  std::random_device random;
  constexpr int tries = 100;
  for (int i = 1;; ++i) {
    part_ = folder_of(path_) / fmt::format("{}{:08x}{}", prefix_of(path_), random(), part_ending);
    file_ =
        FileHandle(file_calls().open(part_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    int error = errno;
    if (file_.get() < 0) {
      part_.clear();  // somebody else's, or none
      if (error != EEXIST || i == tries) fail("begun", error);
      continue;
    }
    struct stat status = {};
    bool locked = file_calls().lock(file_.get()) == 0;
    error = errno;
    // File systems without locks: what a process that ends leaves stays there.
    locked = locked || error == ENOSYS || error == ENOTSUP || error == ENOLCK;
    if (locked && ::fstat(file_.get(), &status) == 0 && status.st_nlink > 0) {
      if (replaces) ::fchmod(file_.get(), old.st_mode & 07777);  // as far as that is allowed
      return;
    }
    if ((!locked && error != EWOULDBLOCK) || i == tries) fail("locked", error);
    file_calls().unlink(part_.c_str());
    part_.clear();
  }
}

ReplacingFile::~ReplacingFile() {
  if (!part_.empty()) file_calls().unlink(part_.c_str());
}

void ReplacingFile::fail(const char* doing, int error) const {
  const std::string room =
      error == ENOSPC || error == EDQUOT || error == EFBIG
          ? fmt::format("; the file takes {}: free some space or write it elsewhere",
                        byte_text(bytes_))
          : "";
  throw FileError(
      fmt::format("{}: cannot be {}: {}{}", path_text(path_), doing, message_of(error), room));
}

/// Files that others began in place of the same one, and whose processes have ended.
void ReplacingFile::remove_rubbish() const {
  std::error_code ignored;
  const std::string prefix = prefix_of(path_);
  for (auto at = std::filesystem::directory_iterator(folder_of(path_), ignored);
       at != std::filesystem::directory_iterator(); at.increment(ignored)) {
    const std::string name = at->path().filename().string();
    if (name.size() != prefix.size() + part_digits + part_ending.size() ||
        !name.starts_with(prefix) || !name.ends_with(part_ending))
      continue;
    const FileHandle left(
        file_calls().open(at->path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0));
    if (left.get() >= 0 && file_calls().lock(left.get()) == 0)
      file_calls().unlink(at->path().c_str());
  }
}

void ReplacingFile::write(const void* from, std::int64_t bytes, std::int64_t at) {
  transfer(
      bytes,
      [&](std::int64_t done, std::size_t count) {
        return file_calls().pwrite(file_.get(), static_cast<const std::byte*>(from) + done, count,
                                   at + done);
      },
      [&](const std::string& why) {
        throw FileError(fmt::format("{}: cannot be written: {}", path_text(path_), why));
      },
      "no bytes were written");
}

void ReplacingFile::sync() {
  if (uninterrupted([&] { return file_calls().fsync(file_.get()); }) != 0)
    fail("flushed to the disk", errno);
}

void ReplacingFile::commit() {
  sync();
  if (file_calls().rename(part_.c_str(), path_.c_str()) != 0) fail("moved into place", errno);
  part_.clear();
  const FileHandle folder(file_calls().open(folder_of(path_).c_str(), O_RDONLY | O_CLOEXEC, 0));
  if (folder.get() < 0 || file_calls().fsync(folder.get()) != 0) {
    const int error = errno;
    // Some file systems cannot: then the name is as durable as it gets.
    if (error != EINVAL && error != ENOTSUP) fail("made durable in its folder", error);
  }
}

void check_room(const std::filesystem::path& path, std::int64_t bytes) {
  const ReplacingFile begun(path, 0);
  struct statvfs there = {};
  if (::statvfs(folder_of(path).c_str(), &there) != 0) return;  // not told: the file will find out
  const auto free = static_cast<std::uint64_t>(there.f_bavail) * there.f_frsize;
  if (static_cast<std::uint64_t>(bytes) <= free) return;
  throw FileError(
      fmt::format("{}: the file will take about {}, and its folder has {} free; free some space or "
                  "write it elsewhere",
                  path_text(path), byte_text(bytes), byte_text(static_cast<std::int64_t>(free))));
}

}  // namespace topkv
