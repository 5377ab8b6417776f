// How many bytes the steps of a normalizer and of a pre-tokenizer may make of one text. A step may
// make its text longer, so a chain of them may make any amount of a few bytes.
//
// Far above what tokenizers need, which copy a text a few times and make it up to four times as
// long by marks for spaces, or eleven by NFKC where it is of one character (U+FDFA) alone.
//
// Threads: for one thread.
#pragma once

#include <algorithm>
#include <cstddef>

namespace topkv {

class ByteAllowance {
 public:
  /// Places in a text are 32-bit.
  static constexpr std::size_t longest_text = (std::size_t{1} << 31U) - 1;

  explicit ByteAllowance(std::size_t text_bytes)
      : text_bytes_(text_bytes), left_(per_byte * text_bytes + for_any_text) {}

  /// Whether a step may go on, of which the output has so many bytes so far. Throws FileError, with
  /// no path in front.
  void check(std::size_t bytes) const {
    if (bytes > std::min(left_, longest_text)) refuse(bytes);
  }

  /// Takes the output of a step. Throws as check does.
  void take(std::size_t bytes) {
    check(bytes);
    left_ -= bytes;
  }

 private:
  static constexpr std::size_t per_byte = 64;
  static constexpr std::size_t for_any_text = 65536;

  [[noreturn]] void refuse(std::size_t bytes) const;

  std::size_t text_bytes_;
  std::size_t left_;
};

}  // namespace topkv
