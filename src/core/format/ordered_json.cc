#include "src/core/format/ordered_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/core/format/json_file.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// REQUIRES: nested no deeper than parse_json takes.
void check_objects(const nlohmann::json& value, const std::string& what) {
  if (value.is_object() && value.size() > max_ordered_keys)
    throw FileError(fmt::format("{}: has an object of {} keys; expected at most {}", what,
                                value.size(), max_ordered_keys));
  if (!value.is_structured()) return;
  for (const nlohmann::json& one : value) check_objects(one, what);
}

}  // namespace

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& what) {
  check_objects(parse_json(text, what), what);
  return nlohmann::ordered_json::parse(text);
}

}  // namespace topkv
