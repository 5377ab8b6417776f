// Tokens to text, where the vocabulary is spelled in pieces: the "decoder" of a tokenizer.json, as
// a chain of steps over the tokens' contents.
//
// Threads: immutable; safe from many threads.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace topkv {

class Decoder {
 public:
  /// Reads Replace (of a text), Metaspace, ByteFallback, Fuse, Strip (behind Fuse), ByteLevel and
  /// Sequences of them. byte_level: whether contents are spelled in the byte-level alphabet; a
  /// ByteLevel reads them then, and is refused else. Throws FileError, or Unsupported naming the
  /// component; both begin with `file`.
  static Decoder parse(const nlohmann::json& description, const std::filesystem::path& file,
                       bool byte_level);

  /// The text of tokens with these contents, at most four times as long as they, as the
  /// `tokenizers` library puts it together. Bytes in a row that are no UTF-8 become U+FFFD: each of
  /// a ByteFallback's, each incomplete character of a ByteLevel's.
  std::string text(std::vector<std::string> contents) const;

  /// What one token adds to a text that has begun: its bytes, which may be part of a character.
  std::string bytes(std::string_view content) const;

 private:
  struct Step {
    enum class Kind { replace, metaspace, byte_fallback, fuse, strip, byte_level };
    Kind kind;
    std::string pattern = {};  // replace: not empty; metaspace, strip: one character
    std::string content = {};  // replace
    bool drops_first = false;  // metaspace: those in the first token are none
    std::size_t start = 0;     // strip: so many characters at most, on either side
    std::size_t stop = 0;
  };
  class Parser;

  std::vector<Step> steps_;
};

}  // namespace topkv
