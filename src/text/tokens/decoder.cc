#include "src/text/tokens/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/format/json_file.h"
#include "src/core/text/utf8.h"
#include "src/text/tokens/byte_level.h"
#include "src/text/tokens/vocabulary.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

constexpr std::size_t max_decoders = 32;
constexpr std::size_t max_pattern_bytes = 1024;
constexpr double max_growth = 4;  // of a text by all steps together, which multiply what they add

std::string replaced(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  while (true) {
    const std::size_t found = text.find(pattern);
    out += text.substr(0, found);
    if (found == std::string_view::npos) return out;
    out += content;
    text.remove_prefix(found + pattern.size());
  }
}

std::string stripped(std::string_view text, std::string_view c, std::size_t start,
                     std::size_t stop) {
  for (; start > 0 && text.starts_with(c); --start) text.remove_prefix(c.size());
  for (; stop > 0 && text.ends_with(c); --stop) text.remove_suffix(c.size());
  return std::string(text);
}

/// Bytes in a row become one text, or U+FFFD for each of them.
std::vector<std::string> with_bytes_read(std::vector<std::string> contents) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (valid_utf8_bytes(bytes) == bytes.size()) {
      out.push_back(bytes);
    } else {
      std::string& text = out.emplace_back();
      for (std::size_t i = 0; i < bytes.size(); ++i) append_utf8(replacement_character, text);
    }
    bytes.clear();
  };
  for (std::string& content : contents) {
    const int byte = byte_of_piece(content);
    if (byte >= 0) {
      bytes.push_back(static_cast<char>(byte));
    } else {
      flush();
      out.push_back(std::move(content));
    }
  }
  flush();
  return out;
}

/// A content that has other characters than letters of bytes stands for itself.
std::string read_byte_level(const std::string& content) {
  return bytes_from_byte_level(content).value_or(content);
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

}  // namespace

class Decoder::Parser {
 public:
  Parser(const std::filesystem::path& file, bool byte_level)
      : file_(file), byte_level_(byte_level) {}

  std::vector<Step> parse(const Json& description) {
    component(description, "decoder.");
    if (byte_level_ && std::ranges::count(steps_, Step::Kind::byte_level, &Step::kind) != 1) {
      JsonObject(description, file_, "decoder.")
          .unsupported("type", "ByteLevel, or a Sequence with one, with a ByteLevel pre_tokenizer");
    }
    return std::move(steps_);
  }

 private:
  void component(const Json& description, const std::string& where) {
    const JsonObject object(description, file_, where);
    const std::string type = object.text("type");
    if (type == "Sequence") {
      const Json* list = object.find("decoders");
      if (list == nullptr || !list->is_array()) object.fail("decoders", "an array");
      for (std::size_t i = 0; i < list->size(); ++i) {
        component((*list)[i], fmt::format("{}decoders[{}].", where, i));
      }
      return;
    }
    if (steps_.size() == max_decoders) object.unsupported("type", "at most 32 components");
    if (type == "Replace") {
      replace(object, where);
    } else if (type == "Metaspace") {
      const std::string scheme = object.text("prepend_scheme", "always");
      steps_.push_back({.kind = Step::Kind::metaspace,
                        .pattern = character(object, "replacement"),
                        .drops_first = scheme != "never"});
    } else if (type == "ByteFallback") {
      steps_.push_back({.kind = Step::Kind::byte_fallback});
    } else if (type == "ByteLevel" && byte_level_) {
      fused_ = true;
      grow(object, 1.5);  // two bytes of a letter become three of U+FFFD
      steps_.push_back({.kind = Step::Kind::byte_level});
    } else if (type == "Fuse") {
      fused_ = true;
      steps_.push_back({.kind = Step::Kind::fuse});
    } else if (type == "Strip") {
      if (!fused_) object.unsupported("type", "Strip behind Fuse only");
      constexpr std::int64_t most = 1 << 20;
      steps_.push_back({.kind = Step::Kind::strip,
                        .pattern = character(object, "content"),
                        .start = static_cast<std::size_t>(object.integer("start", 0, most)),
                        .stop = static_cast<std::size_t>(object.integer("stop", 0, most))});
    } else {
      object.unsupported("type",
                         "Replace, Metaspace, ByteFallback, Fuse, Strip and Sequence, and "
                         "ByteLevel with a ByteLevel pre_tokenizer");
    }
  }

  static std::string character(const JsonObject& object, const char* key) {
    std::string text = object.text(key);
    if (text.empty() || first_utf8_char(text).bytes != text.size()) {
      object.fail(key, "one character");
    }
    return text;
  }

  void replace(const JsonObject& object, const std::string& where) {
    const Json* pattern = object.find("pattern");
    if (pattern == nullptr) object.fail("pattern", "an object");
    const JsonObject choice(*pattern, file_, where + "pattern.");
    if (!choice.contains("String")) object.unsupported("pattern", "a \"String\"");
    Step step{.kind = Step::Kind::replace,
              .pattern = choice.text("String"),
              .content = object.text("content")};
    if (step.pattern.empty()) choice.unsupported("String", "a text that is not empty");
    const auto bytes = [](const std::string& text) { return static_cast<double>(text.size()); };
    if (step.pattern.size() > max_pattern_bytes) {
      choice.unsupported("String", fmt::format("at most {} bytes", max_pattern_bytes));
    }
    grow(object, std::max(1.0, bytes(step.content) / bytes(step.pattern)));
    steps_.push_back(std::move(step));
  }

  void grow(const JsonObject& object, double times) {
    growth_ *= times;
    if (growth_ <= max_growth) return;
    object.unsupported(object.contains("content") ? "content" : "type",
                       "texts that are, in all steps together, at most four times as long as "
                       "what they replace");
  }

  const std::filesystem::path& file_;
  bool byte_level_;
  std::vector<Step> steps_;
  bool fused_ = false;
  double growth_ = 1;
};

Decoder Decoder::parse(const Json& description, const std::filesystem::path& file,
                       bool byte_level) {
  Decoder result;
  result.steps_ = Parser(file, byte_level).parse(description);
  return result;
}

std::string Decoder::text(std::vector<std::string> contents) const {
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::replace:
        for (std::string& content : contents) {
          content = replaced(content, step.pattern, step.content);
        }
        break;
      case Step::Kind::metaspace:
        for (std::size_t i = 0; i < contents.size(); ++i) {
          contents[i] = replaced(contents[i], step.pattern, i == 0 && step.drops_first ? "" : " ");
        }
        break;
      case Step::Kind::byte_fallback:
        contents = with_bytes_read(std::move(contents));
        break;
      case Step::Kind::fuse:
        contents = {joined(contents)};
        break;
      case Step::Kind::byte_level:
        for (std::string& content : contents) content = read_byte_level(content);
        contents = {replace_invalid_utf8(joined(contents))};
        break;
      case Step::Kind::strip:
        for (std::string& content : contents) {
          content = stripped(content, step.pattern, step.start, step.stop);
        }
        break;
    }
  }
  return joined(contents);
}

std::string Decoder::bytes(std::string_view content) const {
  std::string text(content);
  for (const Step& step : steps_) {
    if (step.kind == Step::Kind::replace) text = replaced(text, step.pattern, step.content);
    if (step.kind == Step::Kind::metaspace) text = replaced(text, step.pattern, " ");
    if (step.kind == Step::Kind::byte_level) return read_byte_level(text);
    if (step.kind != Step::Kind::byte_fallback) continue;  // Strip is of the whole text's ends
    const int value = byte_of_piece(text);
    if (value >= 0) return {static_cast<char>(value)};  // no longer text
  }
  return text;
}

}  // namespace topkv
