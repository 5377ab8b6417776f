#include "src/cli/terminal/text_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/cli/terminal/parse_numbers.h"

namespace topkv::cli {
namespace {

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U; }

// Bytes of the character that the text begins with; 0 when these are not UTF-8 (Unicode 15, table
// 3-7: no overlong forms, no surrogates, nothing above U+10FFFF).
std::size_t character_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return 1;
  const std::size_t size = first < 0xc2   ? 0
                           : first < 0xe0 ? 2
                           : first < 0xf0 ? 3
                           : first < 0xf5 ? 4
                                          : 0;
  if (size == 0 || text.size() < size) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if (!continues(text[i])) return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  const bool excluded = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                        (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return excluded ? 0 : size;
}

// Bytes of a control character that the text begins with, those of C1 included: terminals obey
// them too. 0 for others.
std::size_t control_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x20 || first == 0x7f) return 1;
  const bool c1 = first == 0xc2 && text.size() > 1 && static_cast<unsigned char>(text[1]) < 0xa0;
  return c1 ? 2 : 0;
}

}  // namespace

std::size_t first_not_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = character_bytes(text.substr(at));
    if (size == 0) return at;
    at += size;
  }
  return std::string_view::npos;
}

std::string printable(std::string_view text) {
  std::string out;
  for (;;) {
    const std::size_t bad = first_not_utf8(text);
    out += text.substr(0, bad);
    if (bad == std::string_view::npos) return out;
    out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[bad]));
    text.remove_prefix(bad + 1);
  }
}

void check_utf8(std::string_view flag, std::string_view text) {
  const std::size_t bad = first_not_utf8(text);
  if (bad == std::string_view::npos) return;
  throw UsageError(fmt::format(
      "{}: expected UTF-8 text, found byte 0x{:02x} at position {} of '{}'; convert it, as with "
      "iconv -f latin1 -t utf-8",
      flag, static_cast<unsigned char>(text[bad]), bad, one_line(printable(text), 40)));
}

std::string unescaped(std::string_view text) {
  constexpr std::string_view letters = "ntr\\";
  constexpr std::string_view meant = "\n\t\r\\";
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t escape =
        text[i] == '\\' && i + 1 < text.size() ? letters.find(text[i + 1]) : letters.npos;
    if (escape == letters.npos) {
      out += text[i];
    } else {
      out += meant[escape];
      ++i;
    }
  }
  return out;
}

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return !continues(byte); }));
}

std::string one_line(std::string_view text, std::size_t width) {
  std::string line;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t control = control_bytes(text.substr(at));
    if (control == 0 && text[at] != ' ') {
      line += text[at];
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
    at += std::max<std::size_t>(control, 1);
  }
  if (!line.empty() && line.back() == ' ') line.pop_back();
  if (width_of(line) <= width) return line;
  std::size_t bytes = 0;
  for (std::size_t characters = 0; bytes < line.size(); ++bytes) {
    if (!continues(line[bytes]) && ++characters >= width) break;
  }
  return line.substr(0, bytes) + "…";
}

std::string labelled(std::string_view label, std::string_view text, std::size_t width,
                     std::size_t indent) {
  std::string out;
  std::string line(label);
  line.resize(std::max(indent, label.size()), ' ');
  bool empty = true;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!empty && width_of(line) + 1 + width_of(word) > width) {
      out += line + "\n";
      line.assign(indent, ' ');
      empty = true;
    }
    if (empty && word.empty() && !out.empty()) continue;  // no blanks at the head of a line
    if (!empty) line += ' ';
    line += word;
    empty = false;
  }
  return out + line + "\n";
}

}  // namespace topkv::cli
