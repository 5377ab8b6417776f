#include "src/text/jinja/text_methods.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "src/core/text/utf8.h"
#include "src/text/jinja/limits.h"

namespace topkv {
namespace {

/// Python's str.isspace.
bool is_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

Values split_at_spaces(std::string_view text, std::int64_t most) {
  Values parts;
  const auto skip = [&](bool spaces) {
    std::size_t at = 0;
    while (at < text.size()) {
      const Utf8Char next = first_utf8_char(text.substr(at));
      if (is_space(next.code_point) != spaces) break;
      at += next.bytes;
    }
    return at;
  };
  for (;;) {
    text.remove_prefix(skip(true));
    if (text.empty()) return parts;
    const std::size_t end =
        most >= 0 && static_cast<std::int64_t>(parts.size()) >= most ? text.size() : skip(false);
    parts.push_back(counted(text_value(std::string(text.substr(0, end)))));
    text.remove_prefix(end);
  }
}

Values split_at(const std::string& text, const std::string& separator, std::int64_t most) {
  Values parts;
  std::size_t begin = 0;
  for (std::size_t at = 0; (at = place_of(separator, text, begin)) != std::string::npos;) {
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) >= most) break;
    parts.push_back(counted(text_value(text.substr(begin, at - begin))));
    begin = at + separator.size();
  }
  parts.push_back(counted(text_value(text.substr(begin))));
  return parts;
}

/// Python's str.splitlines.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  const auto add = [&](std::size_t end) {
    Meter::current().take(sizeof(std::string_view));
    lines.push_back(text.substr(begin, end - begin));
  };
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char next = first_utf8_char(text.substr(at));
    const char32_t c = next.code_point;
    const bool ends = (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
    const std::size_t end = at;
    at += next.bytes;
    if (!ends) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    add(end);
    begin = at;
  }
  if (begin < text.size()) add(text.size());
  return lines;
}

}  // namespace

Value stripped(const Values& arguments, bool left, bool right) {
  const std::string text = text_argument(arguments, "", 0);
  const Value given = argument(arguments, "chars", 1);
  std::set<char32_t> characters;
  if (given && !given->is_none()) {
    const std::string chars = text_argument(arguments, "chars", 1);
    for (std::string_view rest = chars; !rest.empty();) {
      const Utf8Char next = first_utf8_char(rest);
      characters.insert(next.code_point);
      rest.remove_prefix(next.bytes);
    }
  }
  const auto goes = [&](std::string_view at) {
    const char32_t c = first_utf8_char(at).code_point;
    return given && !given->is_none() ? characters.contains(c) : is_space(c);
  };
  std::string_view rest = text;
  while (left && !rest.empty() && goes(rest)) rest.remove_prefix(first_utf8_char(rest).bytes);
  while (right && !rest.empty()) {
    std::size_t last = rest.size() - 1;
    while (last > 0 && (static_cast<unsigned char>(rest[last]) & 0xC0U) == 0x80) --last;
    if (!goes(rest.substr(last))) break;
    rest = rest.substr(0, last);
  }
  return text_value(std::string(rest));
}

Value split(const Values& arguments, jinja::context&) {
  const std::string text = text_argument(arguments, "", 0);
  const std::int64_t most = whole_argument(arguments, "maxsplit", 2, -1);
  const Value given = argument(arguments, "sep", 1);
  if (!given || given->is_none()) return list_of(split_at_spaces(text, most));
  const std::string separator = text_argument(arguments, "sep", 1);
  if (separator.empty()) fail("it splits a text at nothing");
  return list_of(split_at(text, separator, most));
}

Value rsplit(const Values& arguments, jinja::context&) {
  std::string text = text_argument(arguments, "", 0);
  if (!argument(arguments, "sep", 1)) fail("it has rsplit() without a separator");
  std::string separator = text_argument(arguments, "sep", 1);
  const std::int64_t most = whole_argument(arguments, "maxsplit", 2, -1);
  if (separator.empty()) fail("it splits a text at nothing");
  // From the end, which is the beginning of both when they are turned around.
  std::reverse(text.begin(), text.end());
  std::reverse(separator.begin(), separator.end());
  Values parts = split_at(text, separator, most);
  for (Value& part : parts) {
    std::string& turned = part->val_str.parts.front().val;
    std::reverse(turned.begin(), turned.end());
  }
  std::reverse(parts.begin(), parts.end());
  return list_of(std::move(parts));
}

Value replace(const Values& arguments, jinja::context&) {
  const std::string text = text_argument(arguments, "", 0);
  const std::string from = text_argument(arguments, "old", 1);
  const std::string to = text_argument(arguments, "new", 2);
  std::int64_t most = whole_argument(arguments, "count", 3, -1);
  if (from.empty()) fail("it replaces nothing by something, which is not implemented");
  std::string out;
  std::size_t begin = 0;
  for (std::size_t at = 0; most != 0 && (at = place_of(from, text, begin)) != std::string::npos;
       --most) {
    Meter::current().take(to.size() + (at - begin));
    out.append(text, begin, at - begin).append(to);
    begin = at + from.size();
  }
  out.append(text, begin);
  return text_value(std::move(out));
}

Value format(const Values& arguments, jinja::context&) {
  const std::string text = text_argument(arguments, "", 0);
  std::string out;
  const auto add = [&out](std::string_view part) {
    Meter::current().take(part.size());
    out += part;
  };
  std::size_t begin = 0;
  std::size_t next = 1;
  for (std::size_t at = 0; (at = text.find('{', begin)) != std::string::npos; begin = at + 2) {
    if (at + 1 == text.size() || text[at + 1] != '}') {
      fail("it has format() with something else than {}, which is not implemented");
    }
    if (next == arguments.size()) fail("it has format() with more {} than values");
    add(std::string_view(text).substr(begin, at - begin));
    add(text_of(arguments[next++]));
  }
  add(std::string_view(text).substr(begin));
  return text_value(std::move(out));
}

Value indent(const Values& arguments, jinja::context&) {
  const Value width = argument(arguments, "width", 1);
  const Value first = argument(arguments, "first", 2);
  const Value blank = argument(arguments, "blank", 3);
  const std::string text = text_argument(arguments, "", 0) + "\n";  // as jinja2 has it
  const std::int64_t spaces =
      width && is_text(width) ? 0 : whole_argument(arguments, "width", 1, 4);
  if (spaces < 0 || spaces > 1000) fail("it indents by more than 1000 characters");
  const std::string before =
      width && is_text(width) ? text_in(width) : std::string(static_cast<std::size_t>(spaces), ' ');
  const std::vector<std::string_view> lines = lines_of(text);
  Meter::current().take(lines.size() * before.size());
  std::string out = first && first->as_bool() ? before : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (!lines[i].empty() || (blank && blank->as_bool()))) out += before;
    out += lines[i];
  }
  return text_value(std::move(out));
}

/// The case of texts beyond ASCII is not the engine's to know, nor where words of a title begin.
Value cased(const std::string& name, const Values& arguments, jinja::context& context) {
  const std::string text = text_argument(arguments, "", 0);
  const auto plain = [](unsigned char c) { return std::isalnum(c) != 0 || c == ' '; };
  if (!all_ascii(text) || (name == "title" && !std::all_of(text.begin(), text.end(), plain))) {
    fail("it changes the case of text beyond ASCII, or of a title that is not letters alone");
  }
  jinja::func_args given(context);
  given.push_back(arguments[0]);
  Meter::current().read(3 * text.size());  // so often the engine copies it
  return arguments[0]->get_builtins().at(name)(given);
}

}  // namespace topkv
