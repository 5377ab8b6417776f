#include "src/text/tokens/normalizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/format/json_file.h"
#include "src/core/text/printable.h"
#include "src/core/text/utf8.h"
#include "src/text/pattern/matches.h"
#include "src/text/pattern/regex_syntax.h"
#include "src/text/unicode/nfc.h"
#include "src/text/unicode/white_space.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

constexpr std::size_t max_normalizers = 32;
constexpr std::size_t max_content_bytes = 8192;

/// Of a regular expression that goes over the text a few times from every place.
constexpr std::size_t steps_per_byte = 200;

}  // namespace

class Normalizer::Parser {
 public:
  explicit Parser(const std::filesystem::path& file) : file_(file) {}

  std::vector<Step> parse(const Json& description) {
    if (!description.is_null()) component(description, "normalizer.");
    return std::move(steps_);
  }

 private:
  /// What make gives; its errors name the place.
  template <class Make>
  auto at(const std::string& where, const Make& make) const {
    const std::string place =
        fmt::format("{}: {}", path_text(file_), where.substr(0, where.size() - 1));
    try {
      return make();
    } catch (const Unsupported& error) {
      throw Unsupported(fmt::format("{}: {}", place, error.what()));
    } catch (const FileError& error) {
      throw FileError(fmt::format("{}: {}", place, error.what()));
    }
  }

  void component(const Json& description, const std::string& where) {
    const JsonObject object(description, file_, where);
    const std::string type = object.text("type");
    if (type == "Sequence") {
      const Json* list = object.find("normalizers");
      if (list == nullptr || !list->is_array()) object.fail("normalizers", "an array");
      for (std::size_t i = 0; i < list->size(); ++i) {
        component((*list)[i], fmt::format("{}normalizers[{}].", where, i));
      }
      return;
    }
    if (steps_.size() == max_normalizers) object.unsupported("type", "at most 32 components");
    if (type == "NFC") {
      steps_.push_back({.kind = Step::Kind::nfc});
    } else if (type == "Prepend") {
      steps_.push_back({.kind = Step::Kind::prepend, .content = content(object, "prepend")});
    } else if (type == "Replace") {
      replace(object, where);
    } else if (type == "Strip") {
      steps_.push_back({.kind = Step::Kind::strip,
                        .left = object.flag("strip_left"),
                        .right = object.flag("strip_right")});
    } else if (type == "Precompiled") {
      precompiled(object, where);
    } else {
      object.unsupported("type", "NFC, Prepend, Replace, Strip, Precompiled and Sequence");
    }
  }

  static std::string content(const JsonObject& object, const char* key) {
    std::string text = object.text(key);
    if (text.size() > max_content_bytes) object.unsupported(key, "texts of at most 8192 bytes");
    return text;
  }

  void replace(const JsonObject& object, const std::string& where) {
    const Json* pattern = object.find("pattern");
    if (pattern == nullptr) object.fail("pattern", "an object");
    const std::string inside = where + "pattern.";
    const JsonObject choice(*pattern, file_, inside);
    Step step{.kind = Step::Kind::replace_text, .content = content(object, "content")};
    if (choice.contains("Regex")) {
      step.kind = Step::Kind::replace_matches;
      step.regex = at(inside, [&] { return Regex(pcre2_from_oniguruma(choice.text("Regex"))); });
    } else {
      step.pattern = content(choice, "String");
      if (step.pattern.empty()) choice.unsupported("String", "a text that is not empty");
    }
    steps_.push_back(std::move(step));
  }

  void precompiled(const JsonObject& object, const std::string& where) {
    const std::string map = object.text("precompiled_charsmap");
    steps_.push_back({.kind = Step::Kind::charsmap,
                      .charsmap = at(where, [&] { return Charsmap::parse(map); })});
  }

  const std::filesystem::path& file_;
  std::vector<Step> steps_;
};

Normalizer Normalizer::parse(const Json& description, const std::filesystem::path& file) {
  Normalizer result;
  result.steps_ = Parser(file).parse(description);
  return result;
}

/// Whether what the text began with is at the front still. The `tokenizers` library takes a
/// replacement to stand where the last character of what it replaces was.
bool Normalizer::run(const Step& step, std::string_view text, RegexScratch& regex,
                     const ByteAllowance& allowance, std::string& out) {
  bool at_front = true;
  std::size_t given = 0;  // everything before is in out
  const auto replace = [&](std::size_t begin, std::size_t end) {
    out.append(text.substr(given, begin - given)).append(step.content);
    allowance.check(out.size());
    given = end;
    if (begin == 0 && end > 0) {
      at_front = !step.content.empty() && first_utf8_char(text).bytes == end;
    }
  };
  switch (step.kind) {
    case Step::Kind::nfc:
      if (const std::string_view composed = apply_nfc(text, out); composed.data() != out.data()) {
        out = composed;
      }
      return true;
    case Step::Kind::prepend:
      out.append(step.content).append(text);
      return true;
    case Step::Kind::strip: {
      const std::size_t begin = step.left ? leading_space(text) : 0;
      text.remove_prefix(begin);
      out = step.right ? text.substr(0, trailing_space(text)) : text;
      return begin == 0;
    }
    case Step::Kind::charsmap:
      step.charsmap->apply(text, allowance, out);
      return true;
    case Step::Kind::replace_text:
      for (std::size_t at = text.find(step.pattern); at != std::string_view::npos;
           at = text.find(step.pattern, given)) {
        replace(at, at + step.pattern.size());
      }
      break;
    case Step::Kind::replace_matches:
      regex.allow(steps_per_byte * text.size());
      for_each_match(*step.regex, text, regex, replace);
      break;
  }
  out.append(text.substr(given));
  return at_front;
}

Normalizer::Normalized Normalizer::apply(std::string_view text, Scratch& scratch,
                                         ByteAllowance& allowance) const {
  Normalized result{text};
  for (const Step& step : steps_) {
    if (result.text.empty()) break;
    scratch.next.clear();
    const bool kept = run(step, result.text, scratch.regex, allowance, scratch.next);
    allowance.take(scratch.next.size());
    result.at_front = result.at_front && kept;
    scratch.text.swap(scratch.next);
    result.text = scratch.text;
  }
  return result;
}

}  // namespace topkv
