#include "src/text/jinja/json.h"

#include <algorithm>

#include "src/text/jinja/limits.h"

namespace topkv {
namespace {

bool holds_fraction(const Value& value) {
  if (jinja::is_val<jinja::value_float>(value)) return true;
  return std::any_of(value->val_arr.begin(), value->val_arr.end(), holds_fraction) ||
         std::any_of(value->val_obj.begin(), value->val_obj.end(),
                     [](const auto& entry) { return holds_fraction(entry.second); });
}

/// How the engine writes, as far as it says how long that is.
struct Layout {
  bool ascii;           // all else as \u and four digits
  std::size_t line;     // of an element on a line of its own, at most
  std::size_t between;  // what stands behind an element
  std::size_t colon;
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
  std::size_t bytes = longest_word + layout.line;
  const std::size_t element = layout.line + layout.between;
  if (jinja::is_val<jinja::value_array>(value)) {
    for (const Value& item : value->val_arr) bytes += element + json_bytes(item, layout);
  } else if (jinja::is_val<jinja::value_object>(value)) {
    for (const auto& [key, item] : value->val_obj) {
      if (!is_text(key) && !is_number(key)) fail("it writes " + kind_of(key) + " as a key of JSON");
      bytes += element + layout.colon + json_bytes(key, layout) + json_bytes(item, layout);
    }
  }
  return bytes;
}

/// Of the two, item and key.
std::size_t separator_bytes(const Value& separators, std::size_t place) {
  if (!separators || place >= separators->val_arr.size()) return 2;
  const Value& separator = separators->val_arr[place];
  if (!is_text(separator)) fail("it separates JSON by " + kind_of(separator));
  return separator->val_str.length();
}

}  // namespace

Value to_json(const Values& arguments, jinja::context& context) {
  go_through(arguments[0]);
  if (holds_fraction(arguments[0])) fail("it writes a fraction as JSON, which is not implemented");
  if (arguments[0]->is_undefined()) fail("it writes " + kind_of(arguments[0]) + " as JSON");
  const Value width = argument(arguments, "indent", 2);
  const bool wide = width && is_number(width) && (width->as_int() < 0 || width->as_int() > 16);
  if (wide) fail("it indents JSON by more than 16");
  const Value ascii = argument(arguments, "ensure_ascii", 1);
  const Value separators = argument(arguments, "separators", 3);
  const bool indents = width && is_number(width);
  const std::size_t line =
      indents ? 1 + (max_nesting + 2) * static_cast<std::size_t>(width->as_int()) : 0;
  const Layout layout = {ascii && ascii->as_bool(), 2 * line, separator_bytes(separators, 0),
                         separator_bytes(separators, 1)};
  Meter::current().take(json_bytes(arguments[0], layout));
  jinja::func_args given(context);
  given.func_name = "tojson";
  for (const Value& value : arguments) given.push_back(value);
  return jinja::global_builtins().at("tojson")(given);
}

}  // namespace topkv
