#include "src/cli/flags/flag.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "src/cli/flags/suggest.h"
#include "src/cli/terminal/text_layout.h"
#include "topkv/find_model.h"

namespace topkv::cli {
namespace {

using Kind = FlagValue::Kind;

/// The name that errors use.
std::string first_name(const Flag& flag) { return flag.names.substr(0, flag.names.find(',')); }

// "cuda:3"
bool is_numbered_gpu(std::string_view text) {
  if (!text.starts_with("cuda:")) return false;
  const std::string_view number = text.substr(5);
  return !number.empty() && number.size() <= 4 &&
         number.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

namespace value {

FlagValue text(std::string expected, std::string name, std::vector<std::string> completed) {
  return {Kind::text, std::move(name), std::move(expected), std::move(completed)};
}

FlagValue prose(std::string expected) { return {Kind::prose, "TEXT", std::move(expected)}; }

FlagValue device() {
  return {Kind::device, "WHERE", "auto, cpu, cuda or cuda:N", {"cpu", "cuda", "auto"}};
}

FlagValue file(std::string expected, std::vector<std::string> completed) {
  return {Kind::file, "FILE", std::move(expected), std::move(completed)};
}

FlagValue folder(std::string expected, std::vector<std::string> completed) {
  return {Kind::folder, "DIR", std::move(expected), std::move(completed)};
}

FlagValue model(Kind kind) {
  FlagValue value{kind, "DIR",
                  "the directory of a model, such as models/needle-14m, a GGUF file, or the name "
                  "of a model that was downloaded, such as Qwen/Qwen3-8B"};
  value.endings = {"gguf"};
  return value;
}

FlagValue context() {
  FlagValue value{Kind::text, "FILE.tkv", "a context's file"};
  value.endings = {"tkv"};
  return value;
}

FlagValue choice(std::string name, std::vector<std::string> choices) {
  std::string expected = choices.front();
  for (std::size_t i = 1; i < choices.size(); ++i)
    expected += (i + 1 < choices.size() ? ", " : " or ") + choices[i];
  return {Kind::choice, std::move(name), std::move(expected), std::move(choices)};
}

FlagValue count(std::int64_t least, std::int64_t most) {
  const std::string expected = most < most_count
                                   ? fmt::format("a number from {} to {}", least, most)
                               : least > 1 ? fmt::format("a count of {} or more", least)
                                           : "a count such as 4096, 128K or 1M";
  return {Kind::count, "N", expected, {}, static_cast<double>(least), static_cast<double>(most)};
}

FlagValue bytes() { return {Kind::bytes, "SIZE", "a size such as 512MiB or 8GiB"}; }

FlagValue real(double least, double most, bool above) {
  return {Kind::real, "X", range_text(least, most, above), {}, least, most, above};
}

FlagValue seed() { return {Kind::seed, "N", "a whole number"}; }

FlagValue or_word(FlagValue value, const std::string& word, const std::string& name) {
  value.expected += ", or " + word;
  value.word = word;
  if (!name.empty()) value.name = name;
  return value;
}

FlagValue repeated(FlagValue value) {
  value.repeats = true;
  return value;
}

}  // namespace value

std::string Flag::config_name() const {
  std::string name = names.substr(names.find("--") + 2);
  if (name == "ctx") return "lengths";
  if (name == "file") return "files";
  if (name == "temp") return "temperature";
  std::ranges::replace(name, '-', '_');
  return name;
}

std::vector<std::string> names_of(const Flag& flag) {
  std::vector<std::string> names;
  std::string_view rest = flag.names;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(", "), rest.size());
    names.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 2, rest.size()));
  }
  return names;
}

void read_value(const Flag& flag, const std::string& text, std::string& to) {
  const Kind kind = flag.value.kind;
  const std::vector<std::string>& choices = flag.value.choices;
  const bool known = std::ranges::find(choices, text) != choices.end();
  if (kind == Kind::prose) check_utf8(first_name(flag), text);
  if (!known && (kind == Kind::choice || (kind == Kind::device && !is_numbered_gpu(text)))) {
    throw UsageError(fmt::format("{}: expected {}, found '{}'{}", first_name(flag),
                                 flag.value.expected, text, did_you_mean(nearest(text, choices))));
  }
  to = kind == Kind::model ? find_model(text).string() : text;
}

void read_value(const Flag& flag, const std::string& text, std::int64_t& to) {
  to = flag.value.kind == Kind::bytes
           ? parse_bytes(first_name(flag), text)
           : parse_count(first_name(flag), text, static_cast<std::int64_t>(flag.value.least),
                         static_cast<std::int64_t>(flag.value.most));
}

void read_value(const Flag& flag, const std::string& text, std::uint64_t& to) {
  to = parse_seed(first_name(flag), text);
}

void read_value(const Flag& flag, const std::string& text, double& to) {
  const FlagValue& value = flag.value;
  to = parse_real(first_name(flag), text, value.least, value.most, value.above);
}

}  // namespace topkv::cli
