#include "src/model/json_file.h"

#include <fmt/format.h>

#include <unordered_set>
#include <utility>
#include <vector>

#include "src/core/mapped_file.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

constexpr int max_depth = 64;
constexpr std::int64_t max_values = std::int64_t{1} << 23;

std::string cut(std::string text, std::size_t length) {
  if (text.size() > length) text = text.substr(0, length) + "...";
  return text;
}

/// Watches the parser and stops it. nlohmann::json parses without recursion, so depth is limited
/// for those who walk the result.
class Limits {
 public:
  explicit Limits(std::string file) : file_(std::move(file)) {}

  void see(int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start || event == Event::value) {
      if (++values_ > max_values) fail(fmt::format("more than {} values", max_values));
    }
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= max_depth) fail(fmt::format("arrays and objects more than {} deep", max_depth));
    }
    if (event == Event::object_start) keys_.emplace_back();
    if (event == Event::object_end) keys_.pop_back();
    if (event == Event::key && !keys_.back().insert(parsed.get_ref<const std::string&>()).second) {
      fail(fmt::format("the key {} twice in one object", shown(parsed)));
    }
  }

 private:
  [[noreturn]] void fail(const std::string& found) const {
    throw FileError(fmt::format("{}: has {}; expected no such JSON", file_, found));
  }

  std::string file_;
  std::int64_t values_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;  // of the objects that are open
};

}  // namespace

Json parse_json(std::string_view text, const std::filesystem::path& file) {
  if (text.size() > static_cast<std::size_t>(max_json_bytes)) {
    throw FileError(fmt::format("{}: has {} bytes of JSON; expected at most {}", file.string(),
                                text.size(), max_json_bytes));
  }
  Limits limits(file.string());
  try {
    return Json::parse(text.begin(), text.end(),
                       [&](int depth, Json::parse_event_t event, const Json& parsed) {
                         limits.see(depth, event, parsed);
                         return true;
                       });
  } catch (const Json::exception& error) {
    std::string reason = error.what();  // "[json.exception.parse_error.101] parse error at line …"
    reason.erase(0, reason.find("] ") + 2);
    throw FileError(
        fmt::format("{}: is not valid JSON: {}", file.string(), cut(std::move(reason), 200)));
  }
}

Json read_json_file(const std::filesystem::path& file) {
  const MappedFile mapped = MappedFile::open(file);
  const auto bytes = mapped.bytes();
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file);
}

std::string shown(const Json& value) {
  // Only the beginning is shown, so a long array need not be written out in full.
  if (value.is_array() && value.size() > 16) {
    return fmt::format("an array of {} values", value.size());
  }
  if (value.is_object() && value.size() > 16) {
    return fmt::format("an object of {} keys", value.size());
  }
  return cut(value.dump(-1, ' ', true, Json::error_handler_t::replace), 100);
}

JsonObject::JsonObject(const Json& value, const std::filesystem::path& file, std::string where)
    : value_(&value), file_(file.string()), where_(std::move(where)) {
  if (value.is_object()) return;
  const std::string name = where_.empty() ? "top level" : where_.substr(0, where_.size() - 1);
  throw FileError(fmt::format("{}: {} is {}; expected an object", file_, name, shown(value)));
}

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
