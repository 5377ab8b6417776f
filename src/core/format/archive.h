// What a structure keeps, as bytes of a file. A class names its fields in one function, in order,
// for writing and for reading alike, so that the two cannot differ:
//
//   void KeyCoder::fields(Archive& archive) { axes_.fields(archive); archive.value(bytes_); … }
//
// Numbers are little-endian, of their own size; an array is its length (64 bits) and its elements.
// What is read is hostile until a class has checked it: an archive checks that lengths are within
// what is there, so that memory is bounded by the file, and that floating-point numbers are finite:
// these when they are written, too, so that what is kept can be read.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

namespace topkv {

static_assert(std::endian::native == std::endian::little);

/// One thread at a time.
class Archive {
 public:
  virtual ~Archive() = default;

  virtual bool reading() const = 0;

  template <class T>
  void value(T& x) {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    transfer(&x, sizeof x);
    if constexpr (std::is_floating_point_v<T>) check(std::isfinite(x), not_finite);
  }

  template <class T, class Memory>
  void array(std::vector<T, Memory>& values) {
    std::int64_t count = std::ssize(values);
    value(count);
    elements(values, count);
  }

  /// The elements of an array whose length is known. REQUIRES: writing, it is the array's.
  template <class T, class Memory>
  void elements(std::vector<T, Memory>& values, std::int64_t count) {
    static_assert((std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) ||
                  std::is_same_v<T, std::byte>);
    if (reading()) {
      check(count >= 0 && count <= left() / static_cast<std::int64_t>(sizeof(T)),
            "an array is longer than the data");
      values.resize(static_cast<std::size_t>(count));
    }
    transfer(values.data(), count * static_cast<std::int64_t>(sizeof(T)));
    if constexpr (std::is_floating_point_v<T>) {
      for (const T x : values) check(std::isfinite(x), not_finite);
    }
  }

  /// An array of bfloat16.
  template <class Memory>
  void bf16_array(std::vector<std::uint16_t, Memory>& values) {
    array(values);
    for (const std::uint16_t x : values) check((x & 0x7f80) != 0x7f80, not_finite);
  }

  /// Throws unless `holds`: reading FileError, which says where, else InvalidArgument.
  void check(bool holds, std::string_view what) const {
    if (!holds) fail(what);
  }
  /// Reading: whether there are bytes that were not read yet.
  bool has_more() const { return left() > 0; }
  /// Reading: throws unless there are so many bytes yet, before memory is taken for what they say.
  void check_left(std::int64_t bytes, std::string_view what) const {
    if (reading()) check(bytes <= left(), what);
  }

 protected:
  static constexpr std::string_view not_finite = "a number is not finite";

  virtual void transfer(void* data, std::int64_t bytes) = 0;
  /// Reading: bytes that are still there.
  virtual std::int64_t left() const = 0;
  [[noreturn]] virtual void fail(std::string_view what) const = 0;
};

}  // namespace topkv
