#include "src/text/pre_tokenizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/json_file.h"
#include "src/core/printable.h"
#include "src/core/utf8.h"
#include "src/text/regex_syntax.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

// The pattern of GPT-2's encoder.py, which the ByteLevel component has built in.
constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::size_t max_stages = 32;  // and as many calls of run within each other

/// Of a regular expression that goes over the text a few times from every place; one that goes over
/// all of it from every place takes as many as the text has bytes.
constexpr std::size_t steps_per_byte = 200;

void check_uncut(const Json& description, const std::filesystem::path& file) {
  if (description.is_null()) return;
  const JsonObject object(description, file, "pre_tokenizer.");
  constexpr std::string_view runs = "null, or a Split at spaces, with SentencePiece's pieces";
  if (object.text("type") != "Split") object.unsupported("type", runs);
  const Json* pattern = object.find("pattern");
  if (pattern == nullptr) object.fail("pattern", "an object");
  const JsonObject choice(*pattern, file, "pre_tokenizer.pattern.");
  if (!choice.contains("String") || choice.text("String") != " ")
    object.unsupported("pattern", runs);
}

}  // namespace

class PreTokenizer::Parser {
 public:
  explicit Parser(const std::filesystem::path& file) : file_(file) {}

  std::vector<Stage> parse(const Json& description) {
    if (!description.is_null()) component(description, "pre_tokenizer.");
    if (!byte_level_) {
      throw Unsupported(
          fmt::format("{}: pre_tokenizer is {}, without ByteLevel; topkv runs byte-level BPE only",
                      path_text(file_), shown(description)));
    }
    return std::move(stages_);
  }

 private:
  void component(const Json& description, const std::string& where) {
    const JsonObject object(description, file_, where);
    const std::string type = object.text("type");
    if (type == "Sequence") {
      const Json* list = object.find("pretokenizers");
      if (list == nullptr || !list->is_array()) object.fail("pretokenizers", "an array");
      for (std::size_t i = 0; i < list->size(); ++i) {
        component((*list)[i], fmt::format("{}pretokenizers[{}].", where, i));
      }
      return;
    }
    if (stages_.size() == max_stages) object.unsupported("type", "at most 32 components");
    // Behind ByteLevel the library's text is spelled in the byte-level alphabet.
    if (byte_level_) object.unsupported("type", "no component behind ByteLevel");
    if (type == "ByteLevel") {
      byte_level_ = true;
      Stage stage{.prefix_space = object.flag("add_prefix_space")};
      if (object.flag("use_regex", true)) stage.regex = compile(std::string(gpt2_pattern), where);
      stages_.push_back(std::move(stage));
    } else if (type == "Split") {
      split(object, where);
    } else if (type == "Digits") {
      const bool each = object.flag("individual_digits");
      stages_.push_back({.regex = compile(each ? R"(\p{N})" : R"(\p{N}+)", where)});
    } else {
      object.unsupported("type", "ByteLevel, Split, Digits and Sequence");
    }
  }

  void split(const JsonObject& object, const std::string& where) {
    const std::string behavior = object.text("behavior");
    const bool removed = behavior == "Removed";
    if (!removed && behavior != "Isolated") {
      object.unsupported("behavior", "Isolated and Removed");
    }
    const bool invert = object.flag("invert");
    const Json* pattern = object.find("pattern");
    if (pattern == nullptr) object.fail("pattern", "an object");
    const std::string inside = where + "pattern.";
    const JsonObject choice(*pattern, file_, inside);
    Stage stage{.keep_matches = !removed || invert, .keep_gaps = !removed || !invert};
    if (choice.contains("Regex")) {
      stage.regex = compile(choice.text("Regex"), inside);
    } else {
      const std::string literal = choice.text("String");
      if (literal.empty() && removed) choice.unsupported("String", "a text that is not empty");
      if (literal.empty()) return;  // cuts nowhere
      stage.regex = compile(literal, inside, pcre2_from_literal);
    }
    stages_.push_back(std::move(stage));
  }

  Regex compile(const std::string& pattern, const std::string& where,
                std::string (*translate)(std::string_view) = pcre2_from_oniguruma) const {
    const std::string place = fmt::format("{}: {}", path_text(file_), where);
    try {
      return Regex(translate(pattern));
    } catch (const Unsupported& error) {
      throw Unsupported(place.substr(0, place.size() - 1) + ": " + error.what());
    } catch (const FileError& error) {
      throw FileError(place.substr(0, place.size() - 1) + ": " + error.what());
    }
  }

  const std::filesystem::path& file_;
  std::vector<Stage> stages_;
  bool byte_level_ = false;
};

PreTokenizer PreTokenizer::parse(const Json& description, const std::filesystem::path& file,
                                 bool pieces) {
  PreTokenizer result;
  if (pieces) {
    check_uncut(description, file);
    return result;
  }
  result.stages_ = Parser(file).parse(description);
  return result;
}

void PreTokenizer::split(std::string_view text, Scratch& scratch, const PieceFn& piece) const {
  if (text.empty()) return;
  scratch.regex.allow(steps_per_byte * stages_.size() * text.size());
  run(0, text, scratch, piece);
}

// Only the last stage, ByteLevel, uses scratch.prefixed.
void PreTokenizer::run(std::size_t stage_index, std::string_view text, Scratch& scratch,
                       const PieceFn& piece) const {
  if (stage_index == stages_.size()) {
    piece(text);
    return;
  }
  const Stage& stage = stages_[stage_index];
  if (stage.prefix_space && text.front() != ' ') {
    scratch.prefixed.assign(1, ' ').append(text);
    text = scratch.prefixed;
  }
  if (!stage.regex) {
    run(stage_index + 1, text, scratch, piece);
    return;
  }
  const auto give = [&](std::size_t begin, std::size_t end, bool keep) {
    if (keep && begin < end) {
      run(stage_index + 1, text.substr(begin, end - begin), scratch, piece);
    }
  };
  std::size_t given = 0;  // everything before is given
  std::size_t from = 0;
  std::optional<std::size_t> last_end;
  while (from <= text.size()) {
    const auto match = stage.regex->find(text, from, scratch.regex);
    if (!match) break;
    if (match->begin == match->end && match->end == last_end) {
      // An empty match right behind a match is none: look on from the next character.
      if (match->end == text.size()) break;
      from = match->end + first_utf8_char(text.substr(match->end)).bytes;
      continue;
    }
    give(given, match->begin, stage.keep_gaps);
    give(match->begin, match->end, stage.keep_matches);
    given = from = match->end;
    last_end = match->end;
  }
  give(given, text.size(), stage.keep_gaps);
}

}  // namespace topkv
