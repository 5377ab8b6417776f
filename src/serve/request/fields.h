// Fields of a JSON object that anybody sent: each is read within its limits or refused by name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace topkv::serve {

using BodyJson = nlohmann::json;

/// What messages about a request's body begin with.
inline constexpr const char* request_body = "request body";

/// Reads a body. Throws Problem (400, "invalid_json").
BodyJson parse_body(std::string_view body);

/// Reads the fields of one object. A field that is null counts as absent, everywhere. The object
/// outlives it. All members that read throw Problem (400), which names the field.
class Fields {
 public:
  /// of: the name of the object within the body, such as "messages[0]"; empty: the body itself.
  explicit Fields(const BodyJson& value, std::string of = "");

  /// The field; null when it is absent or null. done() then knows it.
  const BodyJson* find(std::string_view key);

  /// A whole number; 64.0 counts as 64.
  std::optional<std::int64_t> integer(std::string_view key, std::int64_t low, std::int64_t high);
  /// above: low itself is refused.
  std::optional<double> number(std::string_view key, double low, double high, bool above = false);
  std::optional<bool> flag(std::string_view key);
  std::optional<std::string> text(std::string_view key);
  std::string needed_text(std::string_view key);

  /// Takes the field when it has one of the values that are what topkv does anyway.
  void only(std::string_view key, std::initializer_list<BodyJson> values);

  [[noreturn]] void refuse(std::string_view key, const BodyJson& found,
                           std::string_view expected) const;

  /// Refuses fields that would change the answer in ways that nobody here knows.
  void done() const;

 private:
  std::string name(std::string_view key) const;

  const BodyJson* object_;
  std::string of_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace topkv::serve
