// Cuts text into the pieces that a model works within: the "pre_tokenizer" of a tokenizer.json, as
// a chain of stages, each of which cuts every piece of the stage before.
//
// Threads: immutable; each thread brings its own scratch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/pattern/regex.h"
#include "src/text/tokens/byte_allowance.h"

namespace topkv {

class PreTokenizer {
 public:
  struct Scratch {
    RegexScratch regex;
    std::vector<std::string> texts;  // of the stages that change a piece
  };
  /// Called with each piece; the view is good during the call only.
  using PieceFn = std::function<void(std::string_view piece)>;

  /// Reads null, ByteLevel (with which the chain ends), Split, Digits, WhitespaceSplit, Metaspace
  /// and Sequences of them. Throws FileError, or Unsupported naming the component; both begin with
  /// `file`.
  static PreTokenizer parse(const nlohmann::json& description, const std::filesystem::path& file);

  /// Whether the chain ends with ByteLevel: the model's tokens are spelled in its alphabet.
  bool byte_level() const { return byte_level_; }

  /// Gives the pieces of the text in order; none is empty. at_front: the text is where the text to
  /// encode begins. REQUIRES: text is well-formed UTF-8.
  /// Throws FileError, with no path in front, when the regular expressions take too many steps, or
  /// the stages make more bytes than is allowed: the time is linear in the text.
  void split(std::string_view text, bool at_front, Scratch& scratch, ByteAllowance& allowance,
             const PieceFn& piece) const;

 private:
  /// What becomes of the matches, between which the text is cut.
  enum class Matches : std::uint8_t {
    isolated,  ///< pieces of their own
    removed,
    to_previous,  ///< part of the piece before, unless that ends with one
    to_next,      ///< part of the piece behind, unless that begins with one
    contiguous,   ///< one piece with those next to them
  };
  enum class Prefix : std::uint8_t { none, at_front, always };
  struct Stage {
    Prefix prefix = Prefix::none;  // a piece that does not begin with `mark` gets one
    std::string mark = {};         // a space, or what Metaspace has for it; empty: no prefix
    bool replaces = false;         // spaces become marks
    bool cuts_at_marks = false;    // each is part of the piece behind it
    std::optional<Regex> regex = {};
    Matches matches = Matches::isolated;
    bool inverted = false;  // what is between the matches counts as matches, and they as gaps
  };
  class Parser;
  struct Run;

  std::vector<Stage> stages_;
  bool byte_level_ = false;
};

}  // namespace topkv
