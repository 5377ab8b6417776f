// The exceptions of topkv: one family, whose base is Error. A message is one line. It says what was
// found, what is allowed and, if there is a remedy, what to do.
//
// Two kinds of exceptions pass through beside this family: std::bad_alloc, and whatever a callback
// of the caller throws.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace topkv {

/// The base of every exception that topkv throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument, option, tensor or spec string cannot be used as given.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A file cannot be read, or its content is invalid. The message begins with the path.
class FileError : public Error {
 public:
  using Error::Error;
};

/// A well-formed request or model needs something that topkv does not implement. The message names
/// the key and the value.
class Unsupported : public Error {
 public:
  using Error::Error;
};

/// Work ended before it was complete: a stop was requested, or the oneTBB task group that its
/// caller belongs to was cancelled.
class Stopped : public Error {
 public:
  using Error::Error;
};

/// Memory was refused up front, before the work started. The exception carries the bytes that were
/// wanted and the bytes that were available.
class OutOfMemory : public Error {
 public:
  /// Makes the exception and its message.
  ///
  /// - what: names the memory, such as "host memory for the KV rows of 1048576 tokens".
  /// - remedy: what the caller can do.
  OutOfMemory(const std::string& what, std::int64_t wanted_bytes, std::int64_t available_bytes,
              const std::string& remedy);

  std::int64_t wanted_bytes() const { return wanted_; }
  std::int64_t available_bytes() const { return available_; }

 private:
  std::int64_t wanted_;
  std::int64_t available_;
};

}  // namespace topkv
