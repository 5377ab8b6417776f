#include "src/text/pattern/regex_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/core/format/json_file.h"
#include "src/core/text/utf8.h"
#include "src/text/unicode/unicode_additions.h"
#include "topkv/error.h"

namespace topkv {
namespace {

// Unicode's White_Space, which is Oniguruma's \s. PCRE2's \s has U+180E besides.
constexpr std::string_view space =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view not_space =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff})"
    R"(\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

// General categories but for C and Cn, which shrink with every version of Unicode.
constexpr std::array<std::string_view, 32> categories = {
    "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc",
    "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs", "Cc"};

std::string hex(char32_t code_point) {
  return fmt::format("\\x{{{:x}}}", static_cast<std::uint32_t>(code_point));
}

std::string category_set(std::string_view name) {
  std::string set = fmt::format("\\p{{{}}}", name);
  for (const UnicodeRange& range : unicode_additions()) {
    if (range.category.starts_with(name)) set += hex(range.first) + "-" + hex(range.last);
  }
  return set;
}

bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_ascii_letter(char32_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// A property is three characters here and two thousand in PCRE2's pattern.
void check_length(std::string_view pattern) {
  constexpr std::size_t most = std::size_t{1} << 18U;
  if (pattern.size() <= most) return;
  throw Unsupported(fmt::format(
      "the pattern {} has {} bytes, which is not implemented; topkv runs patterns of up to {}",
      shown(std::string(pattern.substr(0, 200))), pattern.size(), most));
}

/// One character, or a set of them written as the inside of a class.
struct Atom {
  char32_t code_point = 0;
  std::string set;  // empty: code_point
};

class PatternTranslator {
 public:
  explicit PatternTranslator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (!done()) {
      const char32_t c = take();
      if (c == '\\') {
        const Atom atom = escape();
        out_ += atom.set.empty() ? hex(atom.code_point) : "[" + atom.set + "]";
      } else if (c == '[') {
        character_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        interval();
      } else if (c == ')' || c == '|' || c == '*' || c == '+' || c == '?') {
        out_ += static_cast<char>(c);
      } else if (c == '.') {
        out_ += "[^\\x{a}]";
      } else if (c == '^' || c == '$') {
        refuse("an anchor");
      } else {
        out_ += hex(c);
      }
    }
    return out_;
  }

 private:
  bool done() const { return at_ == pattern_.size(); }
  bool next_is(char c) const { return !done() && pattern_[at_] == c; }

  char32_t take() {
    if (done()) refuse("an unfinished end");
    const Utf8Char next = first_utf8_char(pattern_.substr(at_));
    at_ += next.bytes;
    return next.code_point;
  }

  bool take_if(std::string_view expected) {
    if (pattern_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }

  [[noreturn]] void refuse(std::string_view what) const {
    throw Unsupported(
        fmt::format("the regular expression {} has {} before offset {}, which is not implemented; "
                    "topkv runs what it knows PCRE2 to read alike",
                    shown(std::string(pattern_)), what, at_));
  }

  std::string until_brace() {
    const std::size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos) refuse("an unfinished brace");
    std::string inside(pattern_.substr(at_, end - at_));
    at_ = end + 1;
    return inside;
  }

  char32_t hex_number(std::string_view digits) const {
    std::uint32_t value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    const bool all = error == std::errc() && end == digits.data() + digits.size();
    if (!all || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
      refuse("an escape that is no code point");
    }
    return value;
  }

  /// After "\p".
  std::string property() {
    if (!take_if("{")) refuse("a property without braces");
    const std::string name = until_brace();
    if (std::find(categories.begin(), categories.end(), name) == categories.end()) {
      refuse("a property that is no general category");
    }
    return category_set(name);
  }

  /// What follows a backslash; the same inside a class and outside.
  Atom escape() {
    const char32_t c = take();
    switch (c) {
      case 't':
        return {U'\t', {}};
      case 'n':
        return {U'\n', {}};
      case 'v':
        return {U'\v', {}};
      case 'f':
        return {U'\f', {}};
      case 'r':
        return {U'\r', {}};
      case 's':
        return {0, std::string(space)};
      case 'S':
        return {0, std::string(not_space)};
      case 'd':
        return {0, category_set("Nd")};
      case 'p':
        return {0, property()};
      case 'x': {
        if (take_if("{")) return {hex_number(until_brace()), {}};
        const std::string_view digits = pattern_.substr(at_, 2);
        const char32_t value = hex_number(digits);
        if (digits.size() < 2 || value >= 0x80) refuse("an escaped byte");  // not a code point
        at_ += 2;
        return {value, {}};
      }
      case 'u': {
        const std::string_view digits = pattern_.substr(at_, 4);
        if (digits.size() < 4) refuse("an escape that is no code point");
        const char32_t value = hex_number(digits);
        at_ += 4;
        return {value, {}};
      }
      default:
        if (is_digit(c) || is_ascii_letter(c)) {
          refuse(fmt::format("\\{}", static_cast<char>(c)));
        }
        return {c, {}};
    }
  }

  /// One member of a class.
  Atom class_atom() {
    const char32_t c = take();
    if (c == '\\') return escape();
    if (c == '[') refuse("a class within a class");
    if (c == '&' && next_is('&')) refuse("an intersection of classes");
    return {c, {}};
  }

  /// After "[". Everything is written as code points, so that nothing in it is special to PCRE2.
  void character_class() {
    out_ += '[';
    if (take_if("^")) out_ += '^';
    if (next_is(']')) refuse("an empty class");
    while (!take_if("]")) {
      const bool dash_first = next_is('-');
      const Atom first = class_atom();
      const bool range = next_is('-') && pattern_.substr(at_, 2) != "-]";
      if (!range) {
        out_ += first.set.empty() ? hex(first.code_point) : first.set;
        continue;
      }
      take();
      const Atom last = class_atom();
      if (dash_first || !first.set.empty() || !last.set.empty() || next_is('-')) {
        refuse("an unclear - in a class");
      }
      if (first.code_point > last.code_point) refuse("a range that ends before it begins");
      out_ += hex(first.code_point) + "-" + hex(last.code_point);
    }
    out_ += ']';
  }

  /// After "(".
  void group() {
    if (!next_is('?')) {
      out_ += "(?:";  // nothing asks what a group captured
      return;
    }
    for (const std::string_view kind : {"?:", "?i:", "?=", "?!", "?<=", "?<!", "?>"}) {
      if (take_if(kind)) {
        out_ += '(';
        out_ += kind;
        return;
      }
    }
    refuse("a group of an unknown kind");
  }

  /// After "{": {n}, {n,} or {n,m}. Ruby reads {,m} and a ? or + behind in its own way.
  void interval() {
    const std::string inside = until_brace();
    const std::size_t comma = inside.find(',');
    const auto number = [](std::string_view text) {
      return !text.empty() && std::all_of(text.begin(), text.end(), is_digit);
    };
    const bool plain = number(std::string_view(inside).substr(0, comma)) &&
                       (comma == std::string::npos || comma + 1 == inside.size() ||
                        number(std::string_view(inside).substr(comma + 1)));
    if (!plain || next_is('+') || next_is('?')) refuse("an unusual interval");
    out_ += '{' + inside + '}';
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string pcre2_from_oniguruma(std::string_view pattern) {
  check_length(pattern);
  return PatternTranslator(pattern).run();
}

std::string pcre2_from_literal(std::string_view text) {
  check_length(text);
  std::string out;
  while (!text.empty()) {
    const Utf8Char next = first_utf8_char(text);
    out += hex(next.code_point);
    text.remove_prefix(next.bytes);
  }
  return out;
}

}  // namespace topkv
