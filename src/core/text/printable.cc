#include "src/core/text/printable.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "src/core/text/utf8.h"

namespace topkv {

std::string printable(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const Utf8Char next = first_utf8_char(bytes);
    const bool valid = next.kind == Utf8Char::Kind::valid;
    const bool control = next.code_point < 0x20 ||
                         (next.code_point >= 0x7F && next.code_point < 0xA0) ||
                         next.code_point == 0x2028 || next.code_point == 0x2029;
    for (const char byte : bytes.substr(0, next.bytes)) {
      if (valid && !control) {
        text += byte;
      } else {
        text += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
      }
    }
    bytes.remove_prefix(next.bytes);
  }
  return text;
}

std::string printable_beginning(std::string_view bytes) {
  constexpr std::size_t most = 200;
  if (bytes.size() <= most) return printable(bytes);
  std::size_t end = most;  // where a character begins, if they are any
  while (end > most - 4 && (static_cast<unsigned char>(bytes[end]) & 0xC0U) == 0x80) --end;
  return printable(bytes.substr(0, end)) + "...";
}

std::string listed(std::span<const std::string> texts, std::size_t most) {
  std::string list = fmt::format("{}", fmt::join(texts.first(std::min(texts.size(), most)), ", "));
  if (texts.size() > most) list += fmt::format(" and {} more", texts.size() - most);
  return list;
}

std::string path_text(const std::filesystem::path& path) { return printable(path.native()); }

}  // namespace topkv
