#include "src/serve/request/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "src/core/format/json_file.h"
#include "src/serve/request/problem.h"
#include "topkv/error.h"

namespace topkv::serve {
namespace {

/// What changes nothing of an answer.
const std::set<std::string, std::less<>> without_effect = {
    "user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"};

}  // namespace

BodyJson parse_body(std::string_view body) {
  try {
    return parse_json(body, request_body);
  } catch (const FileError& error) {
    throw Problem(400, error.what(), {}, "invalid_json");
  }
}

Fields::Fields(const BodyJson& value, std::string of) : object_(nullptr), of_(std::move(of)) {
  if (!value.is_object())
    throw Problem(400,
                  fmt::format("{}: {} is {}; expected an object", request_body,
                              of_.empty() ? "it" : of_, shown(value)),
                  of_);
  object_ = &value;
}

const BodyJson* Fields::find(std::string_view key) {
  known_.emplace(key);
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

std::optional<std::int64_t> Fields::integer(std::string_view key, std::int64_t low,
                                            std::int64_t high) {
  const BodyJson* value = find(key);
  if (value == nullptr) return {};
  // Clients of other languages write 64.0 for 64.
  if (value->is_number_float()) {
    constexpr double exact = 9007199254740992;  // 2^53
    const auto number = value->get<double>();
    if (std::abs(number) <= exact && number == std::trunc(number)) {
      const auto whole = static_cast<std::int64_t>(number);
      if (whole >= low && whole <= high) return whole;
    }
  } else if (value->is_number_integer() &&
             !(value->is_number_unsigned() &&
               value->get<std::uint64_t>() > std::uint64_t{INT64_MAX})) {
    const auto number = value->get<std::int64_t>();
    if (number >= low && number <= high) return number;
  }
  refuse(key, *value,
         high == INT64_MAX ? fmt::format("a whole number of {} or more, below 2^63", low)
                           : fmt::format("a whole number from {} to {}", low, high));
}

std::optional<double> Fields::number(std::string_view key, double low, double high, bool above) {
  const BodyJson* value = find(key);
  if (value == nullptr) return {};
  if (value->is_number()) {
    const auto number = value->get<double>();
    if ((above ? number > low : number >= low) && number <= high) return number;
  }
  refuse(key, *value, fmt::format("a number {} {} up to {}", above ? "above" : "from", low, high));
}

std::optional<bool> Fields::flag(std::string_view key) {
  const BodyJson* value = find(key);
  if (value == nullptr) return {};
  if (value->is_boolean()) return value->get<bool>();
  refuse(key, *value, "true or false");
}

std::optional<std::string> Fields::text(std::string_view key) {
  const BodyJson* value = find(key);
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  refuse(key, *value, "a string");
}

std::string Fields::needed_text(std::string_view key) {
  std::optional<std::string> found = text(key);
  if (!found)
    throw Problem(400, fmt::format("{}: {} is missing", request_body, name(key)), name(key));
  return *std::move(found);
}

void Fields::only(std::string_view key, std::initializer_list<BodyJson> values) {
  const BodyJson* value = find(key);
  if (value == nullptr || std::ranges::find(values, *value) != values.end()) return;
  std::string expected;
  for (const BodyJson& one : values) expected += (expected.empty() ? "" : " or ") + shown(one);
  throw Problem(
      400,
      fmt::format("{}: {} is {}, which topkv serve does not support; leave it out, or give {}",
                  request_body, name(key), shown(*value), expected),
      name(key), "unsupported_value");
}

void Fields::refuse(std::string_view key, const BodyJson& found, std::string_view expected) const {
  throw Problem(
      400,
      fmt::format("{}: {} is {}; expected {}", request_body, name(key), shown(found), expected),
      name(key));
}

void Fields::done() const {
  for (const auto& [key, value] : object_->items()) {
    if (value.is_null() || known_.contains(key) || (of_.empty() && without_effect.contains(key)))
      continue;
    const std::string unknown = shown(BodyJson(key));  // quoted, ASCII, cut
    throw Problem(400,
                  fmt::format("{}: {}{} is a field that topkv serve does not know; leave it out",
                              request_body, of_.empty() ? "" : of_ + ": ", unknown),
                  name(unknown.substr(1, unknown.size() - 2)), "unknown_parameter");
  }
}

std::string Fields::name(std::string_view key) const {
  return of_.empty() ? std::string(key) : fmt::format("{}.{}", of_, key);
}

}  // namespace topkv::serve
