// Reads the "pre_tokenizer" of a tokenizer.json.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/format/json_file.h"
#include "src/core/text/printable.h"
#include "src/core/text/utf8.h"
#include "src/text/pattern/regex_syntax.h"
#include "src/text/tokens/pre_tokenizer.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

// The pattern of GPT-2's encoder.py, which the ByteLevel component has built in.
constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Unicode's White_Space.
constexpr std::string_view white_space =
    R"([\x{9}-\x{D} \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}])";

constexpr std::size_t max_stages = 32;  // and as many calls within each other

std::string unchanged(std::string_view pattern) { return std::string(pattern); }

}  // namespace

class PreTokenizer::Parser {
 public:
  explicit Parser(const std::filesystem::path& file) : file_(file) {}

  PreTokenizer parse(const Json& description) {
    if (!description.is_null()) component(description, "pre_tokenizer.");
    return std::move(result_);
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
    std::vector<Stage>& stages = result_.stages_;
    if (stages.size() == max_stages) object.unsupported("type", "at most 32 components");
    // Behind ByteLevel the library's text is spelled in the byte-level alphabet.
    if (result_.byte_level_) object.unsupported("type", "no component behind ByteLevel");
    if (type == "ByteLevel") {
      result_.byte_level_ = true;
      Stage stage;
      if (object.flag("add_prefix_space")) {
        stage.prefix = Prefix::always;
        stage.mark.assign(1, ' ');
      }
      if (object.flag("use_regex", true)) stage.regex = compile(std::string(gpt2_pattern), where);
      stages.push_back(std::move(stage));
    } else if (type == "Split") {
      split(object, where);
    } else if (type == "Digits") {
      const bool each = object.flag("individual_digits");
      Stage stage;
      stage.regex = compile(each ? R"(\p{N})" : R"(\p{N}+)", where);
      stages.push_back(std::move(stage));
    } else if (type == "WhitespaceSplit") {
      Stage stage;
      stage.regex = compile(std::string(white_space), where, unchanged);
      stage.matches = Matches::removed;
      stages.push_back(std::move(stage));
    } else if (type == "Metaspace") {
      stages.push_back(metaspace(object));
    } else {
      object.unsupported("type",
                         "ByteLevel, Split, Digits, WhitespaceSplit, Metaspace and Sequence");
    }
  }

  static Stage metaspace(const JsonObject& object) {
    Stage stage;
    stage.replaces = true;
    stage.mark = object.text("replacement");
    if (stage.mark.empty() || first_utf8_char(stage.mark).bytes != stage.mark.size()) {
      object.fail("replacement", "one character");
    }
    const std::string scheme = object.text("prepend_scheme", "always");
    if (scheme == "always") {
      stage.prefix = Prefix::always;
    } else if (scheme == "first") {
      stage.prefix = Prefix::at_front;
    } else if (scheme != "never") {
      object.unsupported("prepend_scheme", "\"always\", \"first\" and \"never\"");
    }
    // Of files from before there was a scheme. Those that say no are not read by the library.
    const bool prefix = object.find("add_prefix_space") == nullptr ||
                        object.flag("add_prefix_space") || stage.prefix == Prefix::none;
    if (!prefix) object.fail("add_prefix_space", "true, or \"never\" as the prepend_scheme");
    stage.cuts_at_marks = object.find("split") == nullptr || object.flag("split");
    return stage;
  }

  void split(const JsonObject& object, const std::string& where) {
    struct Named {
      std::string_view name;
      Matches matches;
    };
    constexpr std::array<Named, 5> behaviors = {{{"Isolated", Matches::isolated},
                                                 {"Removed", Matches::removed},
                                                 {"MergedWithPrevious", Matches::to_previous},
                                                 {"MergedWithNext", Matches::to_next},
                                                 {"Contiguous", Matches::contiguous}}};
    const auto* const behavior =
        std::ranges::find(behaviors, object.text("behavior"), &Named::name);
    if (behavior == behaviors.end()) {
      object.unsupported("behavior",
                         "Isolated, Removed, MergedWithPrevious, MergedWithNext and Contiguous");
    }
    Stage stage;
    stage.matches = behavior->matches;
    stage.inverted = object.flag("invert");
    const Json* pattern = object.find("pattern");
    if (pattern == nullptr) object.fail("pattern", "an object");
    const std::string inside = where + "pattern.";
    const JsonObject choice(*pattern, file_, inside);
    if (choice.contains("Regex")) {
      stage.regex = compile(choice.text("Regex"), inside);
    } else {
      const std::string literal = choice.text("String");
      const bool isolated = stage.matches == Matches::isolated;
      if (literal.empty() && !isolated) choice.unsupported("String", "a text that is not empty");
      if (literal.empty()) return;  // cuts nowhere
      stage.regex = compile(literal, inside, pcre2_from_literal);
    }
    result_.stages_.push_back(std::move(stage));
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
  PreTokenizer result_;
};

PreTokenizer PreTokenizer::parse(const Json& description, const std::filesystem::path& file) {
  return Parser(file).parse(description);
}

}  // namespace topkv
