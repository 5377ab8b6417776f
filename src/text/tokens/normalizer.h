// What is done to a text before tokenization: the "normalizer" of a tokenizer.json, as a chain of
// steps.
//
// Threads: immutable; each thread brings its own scratch.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/pattern/regex.h"
#include "src/text/tokens/byte_allowance.h"
#include "src/text/tokens/charsmap.h"

namespace topkv {

class Normalizer {
 public:
  struct Scratch {
    RegexScratch regex;
    std::string text;
    std::string next;
  };
  struct Normalized {
    std::string_view text;  ///< of what was given, or of the scratch
    bool at_front = true;   ///< it begins with what the text began with, or what was put there
  };

  /// Reads null, NFC, Prepend, Replace (of a text or a regular expression), Strip, Precompiled and
  /// Sequences of them. Throws FileError, or Unsupported naming the component; both begin with
  /// `file`.
  static Normalizer parse(const nlohmann::json& description, const std::filesystem::path& file);

  /// REQUIRES: text is well-formed UTF-8 and not in the scratch. Throws FileError, with no path in
  /// front, when the regular expressions take too many steps, or the steps make more bytes than is
  /// allowed.
  Normalized apply(std::string_view text, Scratch& scratch, ByteAllowance& allowance) const;

 private:
  struct Step {
    enum class Kind { nfc, prepend, replace_text, replace_matches, strip, charsmap };
    Kind kind;
    std::string pattern = {};  // replace_text: not empty
    std::string content = {};  // prepend and both replace
    std::optional<Regex> regex = {};
    std::optional<Charsmap> charsmap = {};
    bool left = false;  // strip
    bool right = false;
  };
  class Parser;

  static bool run(const Step& step, std::string_view text, RegexScratch& regex,
                  const ByteAllowance& allowance, std::string& out);

  std::vector<Step> steps_;
};

}  // namespace topkv
