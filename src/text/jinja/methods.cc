// Methods of values, and filters: the engine's own where they are Python's and harmless, others
// here.
#include <algorithm>
#include <array>
#include <functional>
#include <map>

#include "src/core/utf8.h"
#include "src/text/jinja/limits.h"
#include "src/text/jinja/nodes.h"
#include "src/text/jinja/numbers.h"

namespace topkv {
namespace {

using Values = std::vector<Value>;
using Method = Value (*)(const Values& arguments, jinja::context& context);

/// The engine's own that are left to it, once what they are given has been gone through.
constexpr std::array engine_methods = {"abs", "endswith",   "get",   "items",  "keys",
                                       "map", "rsplit",     "safe",  "format", "max",
                                       "min", "startswith", "values"};

/// An argument by its name, or by its place behind the value; nothing where there is none.
Value argument(const Values& arguments, const char* name, std::size_t place) {
  for (const Value& value : arguments) {
    const auto* named = jinja::cast_val<jinja::value_kwarg>(value);
    if (named != nullptr && named->key == name) return named->val;
  }
  const bool there =
      place < arguments.size() && !jinja::is_val<jinja::value_kwarg>(arguments[place]);
  return there ? arguments[place] : nullptr;
}

bool holds_text(const Value& list) {
  return jinja::is_val<jinja::value_array>(list) &&
         std::any_of(list->val_arr.begin(), list->val_arr.end(), is_text);
}

std::string text_argument(const Values& arguments, const char* name, std::size_t place) {
  const Value value = argument(arguments, name, place);
  if (!value || !is_text(value)) {
    fail("a method of it is given " + (value ? kind_of(value) : "nothing") + "; expected a text");
  }
  return text_in(value);
}

std::int64_t whole_argument(const Values& arguments, const char* name, std::size_t place,
                            std::int64_t missing) {
  const Value value = argument(arguments, name, place);
  if (!value) return missing;
  if (!is_number(value)) fail("a method of it is given " + kind_of(value) + "; expected a number");
  return value->as_int();
}

Value list_of(Values items) { return counted(jinja::mk_val<jinja::value_array>(std::move(items))); }

/// Python's str.isspace.
bool is_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

Value stripped(const Values& arguments, bool left, bool right) {
  const std::string text = text_argument(arguments, "", 0);
  const Value given = argument(arguments, "chars", 1);
  std::u32string characters;
  if (given && !given->is_none()) {
    std::string_view rest;
    const std::string chars = text_argument(arguments, "chars", 1);
    for (rest = chars; !rest.empty(); rest.remove_prefix(first_utf8_char(rest).bytes)) {
      characters += first_utf8_char(rest).code_point;
    }
  }
  const auto goes = [&](std::string_view at) {
    const char32_t c = first_utf8_char(at).code_point;
    return given && !given->is_none() ? characters.find(c) != std::u32string::npos : is_space(c);
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

Value split(const Values& arguments, jinja::context&) {
  const std::string text = text_argument(arguments, "", 0);
  const std::int64_t most = whole_argument(arguments, "maxsplit", 2, -1);
  const Value given = argument(arguments, "sep", 1);
  if (!given || given->is_none()) return list_of(split_at_spaces(text, most));
  const std::string separator = text_argument(arguments, "sep", 1);
  if (separator.empty()) fail("it splits a text at nothing");
  Values parts;
  std::size_t begin = 0;
  for (std::size_t at = 0; (at = text.find(separator, begin)) != std::string::npos;) {
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) >= most) break;
    parts.push_back(counted(text_value(text.substr(begin, at - begin))));
    begin = at + separator.size();
  }
  parts.push_back(counted(text_value(text.substr(begin))));
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
  for (std::size_t at = 0; most != 0 && (at = text.find(from, begin)) != std::string::npos;
       --most) {
    Meter::current().take(to.size() + (at - begin));
    out.append(text, begin, at - begin).append(to);
    begin = at + from.size();
  }
  out.append(text, begin);
  return text_value(out);
}

Value default_for(const Values& arguments, jinja::context&) {
  const Value otherwise = argument(arguments, "default_value", 1);
  const Value also_false = argument(arguments, "boolean", 2);
  const bool there = !arguments[0]->is_undefined() &&
                     (!also_false || !also_false->as_bool() || arguments[0]->as_bool());
  return there ? arguments[0] : otherwise ? otherwise : text_value("");
}

/// The filters int and float: texts are read without spaces around them.
Value number_of(const Values& arguments, bool whole) {
  const Value value = is_text(arguments[0]) ? stripped({arguments[0]}, true, true) : arguments[0];
  const Value given = argument(arguments, "default", 1);
  if (!whole) return fraction(value, given ? given : jinja::mk_val<jinja::value_float>(0.0));
  return whole_number(value, whole_argument(arguments, "base", 2, 10),
                      given ? given : jinja::mk_val<jinja::value_int>(0));
}

Value length(const Values& arguments, jinja::context&) {
  const std::size_t size = is_text(arguments[0])
                               ? character_places(text_in(arguments[0])).size() - 1
                               : items_of(arguments[0]).size();
  return jinja::mk_val<jinja::value_int>(static_cast<std::int64_t>(size));
}

Value first_or_last(const Values& arguments, bool first) {
  const Values items = items_of(arguments[0]);
  if (items.empty()) return jinja::mk_val<jinja::value_undefined>("an element of nothing");
  return first ? items.front() : items.back();
}

Value join(const Values& arguments, jinja::context&) {
  const Value between = argument(arguments, "d", 1);
  const Value attribute = argument(arguments, "attribute", 2);
  if (attribute) fail("it joins attributes, which is not implemented");
  std::string out;
  bool first = true;
  for (const Value& item : items_of(arguments[0])) {
    const std::string text = (first || !between ? "" : text_of(between)) + text_of(item);
    Meter::current().take(text.size());
    out += text;
    first = false;
  }
  return text_value(out);
}

/// select, reject, selectattr, rejectattr.
Value selected(const Values& arguments, bool by_attribute, bool wanted, jinja::context& context) {
  const std::size_t named = by_attribute ? 2 : 1;
  const std::string attribute = by_attribute ? text_argument(arguments, "", 1) : "";
  if (attribute.find('.') != std::string::npos) fail("it selects by a part of a part");
  const std::string test = named < arguments.size() ? text_argument(arguments, "", named) : "";
  Values kept;
  for (const Value& item : items_of(arguments[0])) {
    Meter::current().step();
    Value value = item;
    if (by_attribute) {
      Value nothing = jinja::mk_val<jinja::value_undefined>(attribute);
      const bool object = jinja::is_val<jinja::value_object>(item);
      value = object ? item->at(text_value(attribute), nothing) : nothing;
    }
    Values given = {value};
    for (std::size_t i = named + 1; i < arguments.size(); ++i) given.push_back(arguments[i]);
    if ((test.empty() ? value->as_bool() : holds(test, given, context)) == wanted) {
      kept.push_back(item);
    }
  }
  return list_of(std::move(kept));
}

std::string lower_ascii(std::string text) {
  if (!all_ascii(text)) fail("it orders texts beyond ASCII, which is not implemented");
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  return text;
}

/// What has an order here: texts, whatever their case, as jinja2 has it unless told otherwise.
template <class Key>
Value sorted(Values items, const Values& arguments, const Key& key) {
  if (arguments.size() > 1) fail("it sorts with arguments, which is not implemented");
  std::vector<std::pair<std::string, Value>> keyed;
  for (const Value& item : items) {
    if (!is_text(key(item))) fail("it sorts what is no text, which is not implemented");
    keyed.emplace_back(lower_ascii(text_in(key(item))), item);
  }
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < items.size(); ++i) items[i] = keyed[i].second;
  return list_of(std::move(items));
}

Value dictsort(const Values& arguments, jinja::context&) {
  Values entries;
  for (const auto& entry : arguments[0]->val_obj) {
    entries.push_back(jinja::mk_val<jinja::value_tuple>(entry));
  }
  return sorted(std::move(entries), arguments,
                [](const Value& entry) { return entry->val_arr[0]; });
}

Value reverse(const Values& arguments, jinja::context&) {
  if (is_text(arguments[0])) fail("it reverses a text, which is not implemented");
  Values items = items_of(arguments[0]);
  std::reverse(items.begin(), items.end());
  return list_of(std::move(items));
}

/// Python's str.splitlines.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char next = first_utf8_char(text.substr(at));
    const char32_t c = next.code_point;
    const bool ends = (c >= 0xA && c <= 0xD) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
    const std::size_t end = at;
    at += next.bytes;
    if (!ends) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, end - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
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
  Meter::current().take(lines.size() * (before.size() + sizeof(lines[0])));
  std::string out = first && first->as_bool() ? before : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (!lines[i].empty() || (blank && blank->as_bool()))) out += before;
    out += lines[i];
  }
  return text_value(out);
}

bool holds_fraction(const Value& value) {
  if (jinja::is_val<jinja::value_float>(value)) return true;
  return std::any_of(value->val_arr.begin(), value->val_arr.end(), holds_fraction) ||
         std::any_of(value->val_obj.begin(), value->val_obj.end(),
                     [](const auto& entry) { return holds_fraction(entry.second); });
}

Value tojson(const Values& arguments, jinja::context& context) {
  go_through(arguments[0]);
  if (holds_fraction(arguments[0])) fail("it writes a fraction as JSON, which is not implemented");
  if (arguments[0]->is_undefined()) fail("it writes " + kind_of(arguments[0]) + " as JSON");
  const Value width = argument(arguments, "indent", 2);
  const bool wide = width && is_number(width) && (width->as_int() < 0 || width->as_int() > 16);
  if (wide) fail("it indents JSON by more than 16");
  jinja::func_args given(context);
  given.func_name = "tojson";
  for (const Value& value : arguments) given.push_back(value);
  return jinja::global_builtins().at("tojson")(given);
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
  return arguments[0]->get_builtins().at(name)(given);
}

const std::map<std::string, Method>& methods() {
  static const std::map<std::string, Method> made = {
      {"default", default_for},
      {"dictsort", dictsort},
      {"float", [](const Values& a, jinja::context&) { return number_of(a, false); }},
      {"indent", indent},
      {"int", [](const Values& a, jinja::context&) { return number_of(a, true); }},
      {"join", join},
      {"length", length},
      {"replace", replace},
      {"reverse", reverse},
      {"split", split},
      {"tojson", tojson},
      {"strip", [](const Values& a, jinja::context&) { return stripped(a, true, true); }},
      {"lstrip", [](const Values& a, jinja::context&) { return stripped(a, true, false); }},
      {"rstrip", [](const Values& a, jinja::context&) { return stripped(a, false, true); }},
      {"first", [](const Values& a, jinja::context&) { return first_or_last(a, true); }},
      {"last", [](const Values& a, jinja::context&) { return first_or_last(a, false); }},
      {"list", [](const Values& a, jinja::context&) { return list_of(items_of(a[0])); }},
      {"string", [](const Values& a, jinja::context&) { return text_value(text_of(a[0])); }},
      {"select", [](const Values& a, jinja::context& c) { return selected(a, false, true, c); }},
      {"reject", [](const Values& a, jinja::context& c) { return selected(a, false, false, c); }},
      {"selectattr", [](const Values& a, jinja::context& c) { return selected(a, true, true, c); }},
      {"rejectattr",
       [](const Values& a, jinja::context& c) { return selected(a, true, false, c); }},
      {"sort",
       [](const Values& a, jinja::context&) {
         return sorted(items_of(a[0]), a, [](const Value& item) { return item; });
       }},
      {"upper", [](const Values& a, jinja::context& c) { return cased("upper", a, c); }},
      {"lower", [](const Values& a, jinja::context& c) { return cased("lower", a, c); }},
      {"title", [](const Values& a, jinja::context& c) { return cased("title", a, c); }},
      {"capitalize", [](const Values& a, jinja::context& c) { return cased("capitalize", a, c); }}};
  return made;
}

}  // namespace

Value call_method(const std::string& name, std::vector<Value> arguments, jinja::context& context) {
  const auto own = methods().find(name);
  if (own != methods().end()) return counted(own->second(arguments, context));
  const bool known =
      std::find(engine_methods.begin(), engine_methods.end(), name) != engine_methods.end();
  const auto& there = arguments[0]->get_builtins();
  const auto method = there.find(name);
  if (!known || method == there.end()) {
    fail("it has the filter or method '" + name + "' of " + kind_of(arguments[0]) +
         ", which is not implemented");
  }
  if (name == "rsplit" && arguments.size() < 2) fail("it has rsplit() without a separator");
  if ((name == "startswith" || name == "endswith") && arguments.size() > 2)
    fail("it has " + name + "() with a place to begin at, which is not implemented");
  if ((name == "max" || name == "min") && holds_text(arguments[0]))
    fail("it has the filter " + name + " of texts, which is not implemented");
  jinja::func_args given(context);
  given.func_name = name;
  for (const Value& value : arguments) {
    go_through(value);
    given.push_back(value);
  }
  const Value made = method->second(given);
  go_through(made);
  return counted(made);
}

}  // namespace topkv
