#include "src/core/format/json_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "src/core/format/json_builder.h"
#include "src/core/format/placeholder.h"
#include "src/core/io/mapped_file.h"
#include "src/core/text/printable.h"
#include "src/core/text/utf8.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

/// Control characters that may stand between values, one after another: the parser's message about
/// what follows would have eight bytes for each.
constexpr std::size_t max_line_breaks = std::size_t{1} << 16;

std::string cut(std::string text, std::size_t length) {
  if (text.size() > length) text = text.substr(0, length) + "...";
  return text;
}

/// Strings have no line breaks or tabs, so that white space with one is between values.
bool has_long_gap(std::string_view text) {
  std::size_t breaks = 0;
  for (const char c : text) {
    if (c == '\n' || c == '\r' || c == '\t') {
      if (++breaks > max_line_breaks) return true;
    } else if (c != ' ') {
      breaks = 0;
    }
  }
  return false;
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// Names of numbers outside of strings, as objects.
std::string without_pythons_floats(std::string_view text) {
  std::string changed;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size();) {
    if (in_string && text[at] == '\\' && at + 1 < text.size()) {
      changed += text.substr(at, 2);
      at += 2;
      continue;
    }
    if (text[at] == '"') in_string = !in_string;
    const std::string_view rest = text.substr(at);
    std::string_view name;
    if (!in_string) {
      for (const std::string_view one : {"-Infinity", "Infinity", "NaN"}) {
        if (name.empty() && rest.starts_with(one)) name = one;
      }
    }
    if (name.empty()) {
      changed += text[at++];
    } else {
      changed += fmt::format(R"({{"__float__": "{}"}})", name);
      at += name.size();
    }
  }
  return changed;
}

/// A value whose text as JSON begins with the same `most` characters, however long it is. values:
/// how many may still be shown; each takes a character or more.
Json beginning(const Json& value, std::size_t most, std::size_t& values) {
  constexpr std::size_t longest_character = 4;
  const auto first = [&](const std::string& text) {
    return text.substr(0, most + longest_character);  // what is cut off lies beyond
  };
  if (values > 0) --values;
  if (value.is_string()) return first(value.get_ref<const std::string&>());
  if (!value.is_structured()) return value;
  Json some(value.type());
  for (const auto& [key, one] : value.items()) {
    if (values == 0) break;
    if (value.is_array()) {
      some.push_back(beginning(one, most, values));
    } else {
      some[first(key)] = beginning(one, most, values);
    }
  }
  return some;
}

}  // namespace

void check_json_text(std::string_view text, const std::string& file) {
  if (text.size() > static_cast<std::size_t>(max_json_bytes)) {
    throw FileError(fmt::format("{}: has {} bytes of JSON; expected at most {}", file, text.size(),
                                max_json_bytes));
  }
  if (has_long_gap(text)) {
    throw FileError(fmt::format(
        "{}: has more than {} line breaks and tabs in one place; expected fewer between values",
        file, max_line_breaks));
  }
}

void refuse_json(const std::string& error, const std::string& file) {
  // "[json.exception.parse_error.101] parse error at …"
  std::string reason = error.substr(error.find("] ") + 2);
  throw FileError(
      fmt::format("{}: is not valid JSON: {}", file, printable(cut(std::move(reason), 200))));
}

Json parse_json(std::string_view text, const std::filesystem::path& file, JsonFloats floats) {
  return build_json<Json>(text, path_text(file), floats);
}

Json read_json_file(const std::filesystem::path& file, JsonFloats floats) {
  const MappedFile mapped = MappedFile::open(file);
  const std::string_view text = text_of(mapped);
  refuse_placeholder(text, file);
  return parse_json(text, file, floats);
}

Json read_python_json_file(const std::filesystem::path& file) {
  const MappedFile mapped = MappedFile::open(file);
  const std::string_view text = text_of(mapped);
  refuse_placeholder(text, file);
  if (text.size() > static_cast<std::size_t>(max_json_bytes)) return parse_json(text, file);
  return parse_json(without_pythons_floats(text), file);
}

std::string shown(const Json& value) {
  // Only the beginning is shown, so a long array need not be written out in full.
  if (value.is_array() && value.size() > 16) {
    return fmt::format("an array of {} values", value.size());
  }
  if (value.is_object() && value.size() > 16) {
    return fmt::format("an object of {} keys", value.size());
  }
  constexpr std::size_t most = 100;
  std::size_t values = most + 1;
  return cut(beginning(value, most, values).dump(-1, ' ', true, Json::error_handler_t::replace),
             most);
}

std::string shown_bytes(std::string_view bytes) {
  constexpr std::size_t most = 512;  // more characters than are shown
  return shown(Json(replace_invalid_utf8(bytes.substr(0, most))));
}

JsonObject::JsonObject(const Json& value, const std::filesystem::path& file, std::string where)
    : value_(&value), file_(path_text(file)), where_(std::move(where)) {
  if (value.is_object()) return;
  const std::string name = where_.empty() ? "top level" : where_.substr(0, where_.size() - 1);
  throw FileError(fmt::format("{}: {} is {}; expected an object", file_, name, shown(value)));
}

bool JsonObject::contains(std::string_view key) const { return value_->contains(key); }

const Json* JsonObject::find(std::string_view key) const {
  const auto it = value_->find(key);
  return it == value_->end() || it->is_null() ? nullptr : &*it;
}

std::int64_t JsonObject::integer(std::string_view key, std::int64_t low, std::int64_t high,
                                 std::optional<std::int64_t> missing) const {
  if (missing && !contains(key)) return *missing;
  const Json* value = find(key);
  // A number above INT64_MAX is stored unsigned and would turn negative.
  const bool fits =
      value != nullptr && value->is_number_integer() &&
      !(value->is_number_unsigned() && value->get<std::uint64_t>() > std::uint64_t{INT64_MAX});
  if (fits) {
    const auto number = value->get<std::int64_t>();
    if (number >= low && number <= high) return number;
  }
  fail(key, fmt::format("an integer from {} to {}", low, high));
}

double JsonObject::number(std::string_view key, double low, double high,
                          std::optional<double> missing) const {
  if (missing && !contains(key)) return *missing;
  const Json* value = find(key);
  if (value != nullptr && value->is_number()) {
    const auto number = value->get<double>();
    if (number >= low && number <= high) return number;
  }
  fail(key, fmt::format("a number from {} to {}", low, high));
}

bool JsonObject::flag(std::string_view key, std::optional<bool> missing) const {
  if (missing && !contains(key)) return *missing;
  const Json* value = find(key);
  if (value != nullptr && value->is_boolean()) return value->get<bool>();
  fail(key, "true or false");
}

std::string JsonObject::text(std::string_view key, std::optional<std::string> missing) const {
  if (missing && !contains(key)) return *missing;
  const Json* value = find(key);
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  fail(key, "a string");
}

std::string JsonObject::found(std::string_view key) const {
  const auto it = value_->find(key);
  return it == value_->end() ? "missing" : shown(*it);
}

void JsonObject::fail(std::string_view key, std::string_view expected) const {
  throw FileError(
      fmt::format("{}: {}{} is {}; expected {}", file_, where_, key, found(key), expected));
}

void JsonObject::unsupported(std::string_view key, std::string_view supported) const {
  throw Unsupported(fmt::format("{}: {}{} is {}, which is not implemented; topkv runs {}", file_,
                                where_, key, found(key), supported));
}

}  // namespace topkv
