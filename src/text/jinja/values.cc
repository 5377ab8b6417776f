#include "src/text/jinja/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "src/text/jinja/limits.h"

namespace topkv {
namespace {

// Of the engine's value_t with its shared pointer, and of an entry in an object.
constexpr std::size_t value_bytes = 320;
constexpr std::size_t entry_bytes = 2 * value_bytes;

std::string number_text(double number) {
  const double size = std::fabs(number);
  // Python writes others with an exponent, as C++ does not quite.
  if (number != 0 && !(size >= 1e-4 && size < 1e16)) {
    fail("it prints a number that is very small, very large or none");
  }
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::fixed);
  std::string text(buffer, end.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

void walk(const Value& value, std::size_t depth, std::size_t& bytes) {
  if (depth > max_nesting) fail(fmt::format("its lists are nested more than {} deep", max_nesting));
  bytes += value_bytes;
  if (bytes > (std::size_t{1} << 30U)) fail("a list of it is too long");
  if (is_text(value)) {
    bytes += value->val_str.length();
  } else if (const auto* named = jinja::cast_val<jinja::value_kwarg>(value)) {
    walk(named->val, depth + 1, bytes);
  } else if (jinja::is_val<jinja::value_array>(value)) {
    for (const Value& item : value->val_arr) walk(item, depth + 1, bytes);
  } else if (jinja::is_val<jinja::value_object>(value)) {
    for (const auto& [key, item] : value->val_obj) {
      walk(key, depth + 1, bytes);
      walk(item, depth + 1, bytes);
    }
  }
}

}  // namespace

Value text_value(std::string text) {
  Meter::current().read(text.size());
  auto made = jinja::mk_val<jinja::value_string>();
  made->val_str.parts.push_back({false, std::move(text)});
  return made;
}

bool is_text(const Value& value) { return jinja::is_val<jinja::value_string>(value); }

std::string text_in(const Value& value) {
  Meter::current().read(value->val_str.length());
  return value->val_str.str();
}

Value undefined(std::string_view what) {
  constexpr std::size_t longest = 300;  // as of messages
  return jinja::mk_val<jinja::value_undefined>(std::string(what.substr(0, longest)));
}

void insert(jinja::value_t& object, const Value& key, const Value& value) {
  constexpr std::size_t comparing = 64;  // what else it takes, as bytes
  const std::size_t key_bytes = go_through(key);
  Meter::current().step();
  Meter::current().read(object.val_obj.size() * (key_bytes + comparing));
  object.insert(key, value);
}

bool is_number(const Value& value) { return value->is_numeric(); }

Value fraction_value(double number) {
  constexpr double beyond = 0x1p63;
  if (std::isfinite(number) && std::fabs(number) >= beyond) {
    fail("it has a number that is beyond 64 bits");
  }
  return jinja::mk_val<jinja::value_float>(number);
}

std::string kind_of(const Value& value) {
  if (value->is_undefined()) {
    const auto& hint = jinja::cast_val<jinja::value_undefined>(value)->hint;
    return hint.empty() ? "something undefined" : "'" + hint + "', which is undefined";
  }
  if (value->is_none()) return "none";
  if (is_text(value)) return "a text";
  if (is_number(value)) return "a number";
  if (jinja::is_val<jinja::value_array>(value)) return "a list";
  if (jinja::is_val<jinja::value_object>(value)) return "an object";
  return "a function";
}

std::string text_of(const Value& value) {
  if (value->is_undefined()) return "";
  if (value->is_none()) return "None";
  if (is_text(value)) return text_in(value);
  if (jinja::is_val<jinja::value_float>(value)) return number_text(value->as_float());
  if (is_number(value)) return value->as_string().str();
  fail("it prints " + kind_of(value) + ", whose notation in Python is not known here");
}

std::vector<Value> items_of(const Value& value) {
  std::vector<Value> items;
  if (value->is_undefined()) return items;
  if (jinja::is_val<jinja::value_array>(value)) {
    items = value->val_arr;
  } else if (jinja::is_val<jinja::value_object>(value)) {
    for (const auto& entry : value->val_obj) items.push_back(entry.first);
  } else if (is_text(value)) {
    const std::string text = text_in(value);
    const std::vector<std::size_t> places = character_places(text);
    Meter::current().take(places.size() * value_bytes);
    for (std::size_t i = 0; i + 1 < places.size(); ++i) {
      items.push_back(text_value(text.substr(places[i], places[i + 1] - places[i])));
    }
  } else {
    fail("it goes through " + kind_of(value) + "; expected a list, an object or a text");
  }
  Meter::current().take(items.size() * sizeof(Value));
  return items;
}

const Value& counted(const Value& value) {
  Meter& meter = Meter::current();
  if (is_text(value)) {
    meter.take(value_bytes + value->val_str.length());
  } else if (jinja::is_val<jinja::value_array>(value)) {
    meter.take(value_bytes * (1 + value->val_arr.size()));
  } else if (jinja::is_val<jinja::value_object>(value)) {
    meter.take(value_bytes + entry_bytes * value->val_obj.size());
  }
  return value;
}

std::size_t go_through(const Value& value) {
  std::size_t bytes = 0;
  walk(value, 0, bytes);
  Meter::current().read(bytes);
  return bytes;
}

std::size_t place_of(std::string_view other, const std::string& text, std::size_t from) {
  // The C library's takes time for their sum, std::string's for their product.
  const void* at = memmem(text.data() + from, text.size() - from, other.data(), other.size());
  if (at == nullptr) return std::string::npos;
  return static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
}

bool all_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

std::vector<std::size_t> character_places(std::string_view text) {
  Meter::current().take(text.size() * sizeof(std::size_t));
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80) places.push_back(i);
  }
  places.push_back(text.size());
  return places;
}

}  // namespace topkv
