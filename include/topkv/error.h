// The one family of exceptions that leaves topkv. Every message says what was found, what was
// expected and, where there is a remedy, what to do.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace topkv {

/// Base of everything that topkv throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument, option, tensor or spec string that cannot be used as given.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A file that cannot be read or whose content is not what it must be. The message starts with
/// the path.
class FileError : public Error {
 public:
  using Error::Error;
};

/// A well-formed request or model that topkv does not implement; names the key and the value.
class Unsupported : public Error {
 public:
  using Error::Error;
};

/// Work that was ended by a stop request, or because the oneTBB task group that its caller was part
/// of has been cancelled.
class Stopped : public Error {
 public:
  using Error::Error;
};

/// Memory refused up front, before work has started.
class OutOfMemory : public Error {
 public:
  /// what: which memory ("host memory for the KV rows of 1048576 tokens").
  OutOfMemory(const std::string& what, std::int64_t wanted_bytes, std::int64_t available_bytes,
              const std::string& remedy);

  std::int64_t wanted_bytes() const { return wanted_; }
  std::int64_t available_bytes() const { return available_; }

 private:
  std::int64_t wanted_;
  std::int64_t available_;
};

}  // namespace topkv
