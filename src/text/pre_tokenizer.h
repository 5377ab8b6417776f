// Cuts text into the pieces that BPE works within: the "pre_tokenizer" of a tokenizer.json, as a
// chain of stages, each of which cuts every piece of the stage before.
//
// Threads: immutable; each thread brings its own scratch.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/regex.h"

namespace topkv {

class PreTokenizer {
 public:
  struct Scratch {
    RegexScratch regex;
    std::string prefixed;
  };
  /// Called with each piece; the view is good during the call only.
  using PieceFn = std::function<void(std::string_view piece)>;

  /// Reads ByteLevel, Split (Isolated or Removed), Digits and Sequences of them, which must end
  /// with ByteLevel. pieces: of a text whose spaces are U+2581, and which is not cut: null, or a
  /// Split at spaces, of which there are none. Throws FileError, or Unsupported naming the
  /// component; both begin with `file`.
  static PreTokenizer parse(const nlohmann::json& description, const std::filesystem::path& file,
                            bool pieces = false);

  /// Gives the pieces of the text in order; none is empty. REQUIRES: text is well-formed UTF-8.
  /// Throws FileError, with no path in front, when the regular expressions take too many steps: the
  /// time is linear in the text.
  void split(std::string_view text, Scratch& scratch, const PieceFn& piece) const;

 private:
  struct Stage {
    bool prefix_space = false;  // a piece that does not begin with a space gets one
    std::optional<Regex> regex = {};
    bool keep_matches = true;
    bool keep_gaps = true;
  };
  class Parser;

  void run(std::size_t stage, std::string_view text, Scratch& scratch, const PieceFn& piece) const;

  std::vector<Stage> stages_;
};

}  // namespace topkv
