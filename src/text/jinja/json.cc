#include "src/text/jinja/json.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "src/core/text/utf8.h"
#include "src/text/jinja/limits.h"

namespace topkv {
namespace {

/// How JSON is laid out, as json.dumps of Python is told.
struct Layout {
  bool ascii;           // all else as \u and four digits
  std::int64_t indent;  // of an element on a line of its own; -1: all on one line
  std::string between;
  std::string colon;

  /// What an element on a line of its own takes besides, at most.
  std::size_t line() const {
    return indent < 0 ? 0 : 2 * (1 + (max_nesting + 2) * static_cast<std::size_t>(indent));
  }
};

std::size_t text_bytes(std::string_view text, bool ascii) {
  std::size_t bytes = 2;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool as_digits = byte < 0x20 || (ascii && byte >= 0x80);
    bytes += as_digits ? 6 : c == '"' || c == '\\' ? 2 : 1;
  }
  return bytes;
}

/// At least what it takes. Fails for keys that Python does not write.
std::size_t json_bytes(const Value& value, const Layout& layout) {
  constexpr std::size_t longest_word = 24;  // of numbers, null, and two brackets
  if (is_text(value)) return text_bytes(text_in(value), layout.ascii);
  std::size_t bytes = longest_word + layout.line();
  const std::size_t element = layout.line() + layout.between.size();
  if (jinja::is_val<jinja::value_array>(value)) {
    for (const Value& item : value->val_arr) bytes += element + json_bytes(item, layout);
  } else if (jinja::is_val<jinja::value_object>(value)) {
    for (const auto& [key, item] : value->val_obj) {
      if (!is_text(key) && !is_number(key)) fail("it writes " + kind_of(key) + " as a key of JSON");
      bytes += element + layout.colon.size() + json_bytes(key, layout) + json_bytes(item, layout);
    }
  }
  return bytes;
}

/// Of the two, item and key.
std::string separator(const Value& separators, std::size_t place, const char* usual) {
  if (!separators || place >= separators->val_arr.size()) return usual;
  const Value& given = separators->val_arr[place];
  if (!is_text(given)) fail("it separates JSON by " + kind_of(given));
  return text_in(given);
}

/// As repr() of Python.
std::string fraction_text(double number) {
  if (!std::isfinite(number)) fail("it writes a fraction as JSON that is no number");
  const double size = std::fabs(number);
  const bool plain = number == 0 || (size >= 1e-4 && size < 1e16);
  std::array<char, 64> buffer = {};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer.data(), end.ptr);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

void write_text(const std::string& text, bool ascii, std::string& out) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    constexpr std::string_view named = "\"\\\b\f\n\r\t";
    constexpr std::string_view names = "\"\\bfnrt";
    if (const std::size_t name = named.find(c); name != named.npos) {
      out += '\\';
      out += names[name];
      ++at;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
      ++at;
    } else if (!ascii || (c >= ' ' && c <= '~')) {
      out += c;
      ++at;
    } else {
      const Utf8Char character = first_utf8_char(std::string_view(text).substr(at));
      const auto code = static_cast<std::uint32_t>(character.code_point);
      if (code < 0x10000)
        out += fmt::format("\\u{:04x}", code);
      else  // two surrogates
        out += fmt::format("\\u{:04x}\\u{:04x}", 0xd7c0 + (code >> 10U), 0xdc00 + (code & 0x3ffU));
      at += character.bytes;
    }
  }
  out += '"';
}

void write(const Value& value, const Layout& layout, std::int64_t depth, std::string& out) {
  const auto line = [&](std::int64_t level) {
    if (layout.indent < 0) return;
    out += '\n';
    out.append(static_cast<std::size_t>(level * layout.indent), ' ');
  };
  if (is_text(value)) {
    write_text(text_in(value), layout.ascii, out);
  } else if (jinja::is_val<jinja::value_bool>(value)) {
    out += value->as_bool() ? "true" : "false";
  } else if (jinja::is_val<jinja::value_float>(value)) {
    out += fraction_text(value->as_float());
  } else if (is_number(value)) {
    out += std::to_string(value->as_int());
  } else if (jinja::is_val<jinja::value_array>(value)) {
    out += '[';
    bool first = true;
    for (const Value& item : value->val_arr) {
      if (!std::exchange(first, false)) out += layout.between;
      line(depth + 1);
      write(item, layout, depth + 1, out);
    }
    if (!first) line(depth);
    out += ']';
  } else if (jinja::is_val<jinja::value_object>(value)) {
    out += '{';
    bool first = true;
    for (const auto& [key, item] : value->val_obj) {
      if (!std::exchange(first, false)) out += layout.between;
      line(depth + 1);
      write_text(is_text(key) ? text_in(key) : text_of(key), layout.ascii, out);
      out += layout.colon;
      write(item, layout, depth + 1, out);
    }
    if (!first) line(depth);
    out += '}';
  } else {
    out += "null";
  }
}

}  // namespace

Value to_json(const Values& arguments, jinja::context& /*context*/) {
  go_through(arguments[0]);
  if (arguments[0]->is_undefined()) fail("it writes " + kind_of(arguments[0]) + " as JSON");
  const Value width = argument(arguments, "indent", 2);
  const bool indents = width && is_number(width);
  const bool wide = indents && (width->as_int() < 0 || width->as_int() > 16);
  if (wide) fail("it indents JSON by more than 16");
  const Value ascii = argument(arguments, "ensure_ascii", 1);
  const Value separators = argument(arguments, "separators", 3);
  const Value sorts = argument(arguments, "sort_keys", 4);
  if (sorts && sorts->as_bool()) fail("it sorts keys of JSON, which is not implemented");
  const Layout layout = {ascii && ascii->as_bool(), indents ? width->as_int() : -1,
                         separator(separators, 0, indents ? "," : ", "),
                         separator(separators, 1, ": ")};
  Meter::current().take(json_bytes(arguments[0], layout));
  std::string text;
  write(arguments[0], layout, 0, text);
  return text_value(std::move(text));
}

}  // namespace topkv
