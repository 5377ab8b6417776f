#include "src/core/format/csv.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace topkv {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string field(const OrderedJson& value) {
  if (value.is_string()) return csv_field(value.get<std::string>());
  const std::string text = value.dump();
  return text == "null" ? "" : text;  // numbers that are none, too
}

}  // namespace

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

std::string csv_lines(const std::vector<OrderedJson>& lines) {
  std::string text;
  const auto add_line = [&](const auto& text_of) {
    std::vector<std::string> fields;
    for (const auto& [name, value] : lines.front().items()) {
      if (!value.is_array()) fields.push_back(text_of(name));
    }
    text += fmt::format("{}\n", fmt::join(fields, ","));
  };
  add_line([](const std::string& name) { return csv_field(name); });
  for (const OrderedJson& json : lines) {
    add_line([&](const std::string& name) { return field(json.at(name)); });
  }
  return text;
}

}  // namespace topkv
