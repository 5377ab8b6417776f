#include "src/eval/tasks/record_score.h"

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "src/core/text/utf8.h"

namespace topkv {
namespace {

/// The value as Text2JSON compares it; none for a value that no string equals.
std::optional<std::string> text_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return value.dump();
  return std::nullopt;
}

/// Of a record whose name is right.
double worth(const nlohmann::json& record, const nlohmann::json& wanted) {
  double score = 1;
  const double missing = 1 / static_cast<double>(wanted.size() - 1);
  for (const auto& [key, value] : wanted.items()) {
    if (key == "name") continue;
    const auto found = record.find(key);
    if (found == record.end() || found->is_null()) {
      score -= missing;
    } else if (text_of(*found) != value.get_ref<const std::string&>()) {
      score -= missing / 2;
    }
  }
  return score;
}

}  // namespace

double record_score(std::string_view answer, std::string_view reference) {
  const std::size_t begin = answer.find('[');
  const std::size_t end = answer.find(']', begin);  // nothing is found from npos on
  if (begin == answer.npos || end == answer.npos) return 0;
  const nlohmann::json given = nlohmann::json::parse(
      replace_invalid_utf8(answer.substr(begin, end + 1 - begin)), nullptr, false);
  if (given.is_discarded()) return 0;

  const nlohmann::json records = nlohmann::json::parse(reference);
  std::map<std::string, const nlohmann::json*> left;
  for (const nlohmann::json& record : records) left[record.at("name")] = &record;
  std::size_t all = left.size();
  double score = 0;
  for (const nlohmann::json& record : given) {
    const auto name = record.is_object() ? record.find("name") : record.end();
    const auto wanted = name != record.end() && name->is_string()
                            ? left.find(name->get_ref<const std::string&>())
                            : left.end();
    if (wanted == left.end()) {
      ++all;
      continue;
    }
    score += worth(record, *wanted->second);
    left.erase(wanted);
  }
  return score / static_cast<double>(all);
}

}  // namespace topkv
