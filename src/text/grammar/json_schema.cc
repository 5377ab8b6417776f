#include "src/text/grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "src/core/format/json_file.h"
#include "src/core/format/ordered_json.h"
#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Keywords = std::span<const std::string_view>;

// Limits, for the engine's time and memory grow with each of them, and nothing ends it.
constexpr std::size_t most_bytes = 65536;
constexpr std::size_t most_schemas = 512;
constexpr std::size_t most_values = 1024;    // of an enum
constexpr std::int64_t most_repeats = 4096;  // of characters, items or members
constexpr std::size_t most_pattern_bytes = 512;
constexpr std::size_t most_bytes_of_patterns = 2048;
constexpr std::int64_t most_members = 64;          // that an object must or may have
constexpr std::int64_t most_expressions = 64;      // patterns and formats
constexpr std::int64_t most_pattern_repeats = 64;  // of one part, all quantifiers multiplied

// Keywords that say what a value is like. Others are notes, which no answer depends on.
constexpr std::array<std::string_view, 43> assertions = {"$dynamicRef",
                                                         "$recursiveRef",
                                                         "$ref",
                                                         "additionalItems",
                                                         "additionalProperties",
                                                         "allOf",
                                                         "anyOf",
                                                         "const",
                                                         "contains",
                                                         "dependencies",
                                                         "dependentRequired",
                                                         "dependentSchemas",
                                                         "else",
                                                         "enum",
                                                         "exclusiveMaximum",
                                                         "exclusiveMinimum",
                                                         "if",
                                                         "items",
                                                         "maxContains",
                                                         "maxItems",
                                                         "maxLength",
                                                         "maxProperties",
                                                         "maximum",
                                                         "minContains",
                                                         "minItems",
                                                         "minLength",
                                                         "minProperties",
                                                         "minimum",
                                                         "multipleOf",
                                                         "not",
                                                         "oneOf",
                                                         "pattern",
                                                         "patternProperties",
                                                         "prefixItems",
                                                         "properties",
                                                         "propertyNames",
                                                         "required",
                                                         "type",
                                                         "then",
                                                         "unevaluatedItems",
                                                         "unevaluatedProperties",
                                                         "uniqueItems",
                                                         "nullable"};
// Of these, what the engine knows, by what a schema is.
constexpr std::array<std::string_view, 1> beside_values = {"type"};
constexpr std::array<std::string_view, 20> beside_type = {"type",
                                                          "additionalProperties",
                                                          "exclusiveMaximum",
                                                          "exclusiveMinimum",
                                                          "items",
                                                          "maxItems",
                                                          "maxLength",
                                                          "maxProperties",
                                                          "maximum",
                                                          "minItems",
                                                          "minLength",
                                                          "minProperties",
                                                          "minimum",
                                                          "multipleOf",
                                                          "pattern",
                                                          "prefixItems",
                                                          "properties",
                                                          "required",
                                                          "uniqueItems",
                                                          "nullable"};
constexpr std::array<std::string_view, 3> beside_properties = {"additionalProperties", "properties",
                                                               "required"};

constexpr std::array<const char*, 9> formats = {"date", "date-time", "duration", "hostname", "ipv4",
                                                "ipv6", "time",      "uri",      "uuid"};

bool has(Keywords keywords, std::string_view key) {
  return std::ranges::find(keywords, key) != keywords.end();
}

bool is_of_type(const OrderedJson& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "array") return value.is_array();
  return type == "object" && value.is_object();
}

/// Whether the engine, which writes bounds with 6 digits, has this one as it is.
bool is_plain(double bound) {
  return std::abs(bound) <= 1e15 && std::stod(fmt::format("{:.6f}", bound)) == bound;
}

/// A name as a JSON pointer has it (RFC 6901).
std::string escaped(const std::string& name) {
  std::string out;
  for (const char c : name) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

/// All quantifiers of a pattern in braces, multiplied; no more than a little above the limit.
std::int64_t repeats_of(const std::string& pattern) {
  std::int64_t product = 1;
  for (std::size_t at = pattern.find('{'); at != std::string::npos;
       at = pattern.find('{', at + 1)) {
    std::int64_t largest = 1;
    std::int64_t number = 0;
    for (std::size_t i = at + 1; i < pattern.size() && pattern[i] != '}'; ++i) {
      const auto c = static_cast<unsigned char>(pattern[i]);
      number = std::isdigit(c) != 0 ? std::min(10 * number + (c - '0'), most_repeats) : 0;
      largest = std::max(largest, number);
    }
    product = std::min(product * largest, most_repeats);
  }
  return product;
}

class Check {
 public:
  void schema(OrderedJson& json, const std::string& at) {
    if (json.is_boolean() && json == true) {
      schemas_.insert(at);
      return;
    }
    if (!json.is_object()) refuse(at, "is " + shown(json), "an object, or true");
    if (schemas_.size() == most_schemas)
      refuse(at, fmt::format("is schema number {}", most_schemas + 1),
             fmt::format("at most {}", most_schemas));
    schemas_.insert(at);
    for (const char* const key : {"$defs", "definitions"}) all_of(json, key, at);
    if (json.contains("$ref")) {
      only(json, at, "$ref", {});
      if (!json["$ref"].is_string())
        refuse(at, "has a $ref that is no text", "such as \"#/$defs/x\"");
      refs_.emplace_back(at, json["$ref"].get<std::string>());
    } else if (json.contains("const") || json.contains("enum")) {
      values(json, at);
    } else if (json.contains("anyOf") || json.contains("oneOf") || json.contains("allOf")) {
      choices(json, at);
    } else if (json.contains("type")) {
      typed(json, at);
    } else if (json.contains("properties") || json.contains("additionalProperties")) {
      only(json, at, "properties", beside_properties);
      json["type"] = "object";
      object(json, at);
    } else {
      only(json, at, "type", {});
    }
  }

  /// References, once all schemas were seen.
  void references() const {
    for (const auto& [at, ref] : refs_) {
      if (!schemas_.contains(ref))
        refuse(at, "refers to " + printable_beginning(ref),
               "the place of a schema in this one, such as #/$defs/name");
    }
  }

 private:
  [[noreturn]] static void refuse(const std::string& at, const std::string& found,
                                  const std::string& expected) {
    throw InvalidArgument(fmt::format("the JSON schema cannot be used: {} {}; expected {}",
                                      printable_beginning(at), found, expected));
  }

  /// Refuses what says more of a value than the keyword and those that may stand beside it.
  static void only(const OrderedJson& json, const std::string& at, std::string_view keyword,
                   Keywords others) {
    for (const auto& [key, value] : json.items()) {
      if (key == keyword || has(others, key)) continue;
      if (!has(assertions, key)) continue;
      if (key == "uniqueItems" && value == false) continue;
      if (!has(beside_type, key))
        refuse(at, fmt::format("has {}", key), "none of it, which topkv does not hold answers to");
      refuse(at, fmt::format("has {}", key),
             keyword == "type" && others.empty() ? "a type beside it"
                                                 : fmt::format("none of it beside {}", keyword));
    }
  }

  void all_of(OrderedJson& json, const std::string& key, const std::string& at) {
    if (!json.contains(key)) return;
    if (!json[key].is_object()) refuse(at, "has " + key + " that is no object", "one of schemas");
    for (auto& [name, of] : json[key].items())
      schema(of, fmt::format("{}/{}/{}", at, key, escaped(name)));
  }

  static void values(const OrderedJson& json, const std::string& at) {
    const char* const key = json.contains("const") ? "const" : "enum";
    only(json, at, key, beside_values);
    const OrderedJson list =
        json.contains("const") ? OrderedJson::array({json["const"]}) : json["enum"];
    if (!list.is_array() || list.empty() || list.size() > most_values)
      refuse(at, "has enum " + shown(list), fmt::format("a list of 1 to {} values", most_values));
    if (!json.contains("type")) return;
    const OrderedJson& type = json["type"];
    for (const OrderedJson& value : list) {
      const auto fits = [&](const OrderedJson& one) {
        return one.is_string() && is_of_type(value, one.get<std::string>());
      };
      if (type.is_array() ? std::ranges::any_of(type, fits) : fits(type)) continue;
      refuse(at, fmt::format("has {} {} and type {}", key, shown(value), shown(type)),
             "values of its type");
    }
  }

  void choices(OrderedJson& json, const std::string& at) {
    const char* const key = json.contains("anyOf")   ? "anyOf"
                            : json.contains("oneOf") ? "oneOf"
                                                     : "allOf";
    only(json, at, key, {});
    if (!json[key].is_array() || json[key].empty())
      refuse(at, fmt::format("has {} {}", key, shown(json[key])), "a list of schemas");
    for (std::size_t i = 0; i < json[key].size(); ++i)
      schema(json[key][i], fmt::format("{}/{}/{}", at, key, i));
  }

  void typed(OrderedJson& json, const std::string& at) {
    only(json, at, "type", beside_type);
    if (json.value("uniqueItems", OrderedJson(false)) != false)
      refuse(at, "has uniqueItems", "none of it, which topkv does not hold answers to");
    if (json.value("nullable", OrderedJson(false)) != false)
      refuse(at, "has nullable", "a list of types, such as [\"string\", \"null\"]");
    json.erase("uniqueItems");
    for (const char* const key :
         {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}) {
      if (!json.contains(key)) continue;
      const OrderedJson& number = json[key];
      const std::int64_t most =
          std::string_view(key).ends_with("Properties") ? most_members : most_repeats;
      if (!number.is_number_integer() || number < 0 || number > most)
        refuse(at, fmt::format("has {} {}", key, shown(number)),
               fmt::format("a whole number from 0 to {}", most));
    }
    for (const char* const key : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
      if (!json.contains(key)) continue;
      if (!json[key].is_number() || !is_plain(json[key].get<double>()))
        refuse(at, fmt::format("has {} {}", key, shown(json[key])),
               "a number of up to 1e15 with up to 6 digits behind the point");
    }
    if (json.contains("pattern") || json.contains("format")) {
      if (++expressions_ > most_expressions)
        refuse(at, fmt::format("has pattern or format number {}", expressions_),
               fmt::format("at most {} in a schema", most_expressions));
    }
    if (json.contains("pattern")) expression(json["pattern"], at);
    // The others are notes. The engine knows e-mail addresses too, at a fifth of a second for a
    // token.
    if (json.contains("format") && std::ranges::count(formats, json["format"]) == 0)
      json.erase("format");
    const OrderedJson type = json["type"];
    const auto may_be = [&](const char* name) {
      return type == name || (type.is_array() && std::ranges::count(type, OrderedJson(name)) > 0);
    };
    if (may_be("object")) object(json, at);
    if (may_be("array")) array(json, at);
  }

  void expression(const OrderedJson& pattern, const std::string& at) {
    const std::string text = pattern.is_string() ? pattern.get<std::string>() : "";
    if (text.find_first_of("\"\t\n\r") != std::string::npos)
      refuse(at, "has pattern " + shown(pattern), "one without quotes and line ends");
    if (text.find("\\\\") != std::string::npos)
      refuse(at, "has pattern " + shown(pattern), "one without backslashes in the text");
    if (!pattern.is_string() || text.size() > most_pattern_bytes ||
        repeats_of(text) > most_pattern_repeats)
      refuse(at, "has pattern " + shown(pattern),
             fmt::format("a regular expression of up to {} bytes, whose numbers in braces give at "
                         "most {} if multiplied",
                         most_pattern_bytes, most_pattern_repeats));
    pattern_bytes_ += text.size();
    if (pattern_bytes_ > most_bytes_of_patterns)
      refuse(at, fmt::format("has patterns of {} bytes with those before it", pattern_bytes_),
             fmt::format("at most {} in a schema", most_bytes_of_patterns));
  }

  void object(OrderedJson& json, const std::string& at) {
    all_of(json, "properties", at);
    const bool named = json.contains("properties") && !json["properties"].empty();
    if (json.contains("required")) {
      if (!json["required"].is_array()) refuse(at, "has required that is no list", "one of names");
      for (const OrderedJson& name : json["required"]) {
        if (name.is_string() && named && json["properties"].contains(name.get<std::string>()))
          continue;
        refuse(at, "requires " + shown(name), "names of its properties");
      }
    }
    if (named) {
      for (const char* const key : {"minProperties", "maxProperties"}) {
        if (json.contains(key))
          refuse(at, fmt::format("has {} beside properties", key), "required, or neither");
      }
      json["additionalProperties"] = false;  // an answer without them conforms
      return;
    }
    if (!json.contains("additionalProperties")) json["additionalProperties"] = true;
    if (!json["additionalProperties"].is_boolean())
      schema(json["additionalProperties"], at + "/additionalProperties");
  }

  void array(OrderedJson& json, const std::string& at) {
    if (json.contains("prefixItems")) {
      if (!json["prefixItems"].is_array())
        refuse(at, "has prefixItems that are no list", "schemas");
      for (std::size_t i = 0; i < json["prefixItems"].size(); ++i)
        schema(json["prefixItems"][i], fmt::format("{}/prefixItems/{}", at, i));
    }
    if (!json.contains("items")) json["items"] = true;
    if (!json["items"].is_boolean()) schema(json["items"], at + "/items");
  }

  std::set<std::string> schemas_;  // their places
  std::int64_t expressions_ = 0;   // patterns and formats
  std::size_t pattern_bytes_ = 0;  // of all patterns
  std::vector<std::pair<std::string, std::string>> refs_;
};

}  // namespace

std::string checked_json_schema(std::string_view schema) {
  if (schema.size() > most_bytes) {
    throw InvalidArgument(
        fmt::format("a JSON schema of {} bytes; expected at most {}", schema.size(), most_bytes));
  }
  OrderedJson json;
  try {
    json = parse_ordered_json(schema, "JSON schema");
  } catch (const FileError& error) {
    throw InvalidArgument(error.what());
  }
  Check check;
  check.schema(json, "#");
  check.references();
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace topkv
