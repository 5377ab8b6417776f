#include "src/cli/flags/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "src/cli/flags/help.h"
#include "src/cli/flags/suggest.h"
#include "src/cli/terminal/parse_numbers.h"

namespace topkv::cli {
namespace {

bool is_positional(const CLI::Option& option) {
  return option.get_lnames().empty() && option.get_snames().empty();
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

bool may_repeat(const CLI::Option& option) {
  return option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
}

std::string default_text(const CLI::Option& option) {
  const std::string text = option.get_default_str();
  return text.empty() ? text : ": " + text;
}

/// What is said of a second word behind a flag that takes one: "-f a b", "-p two words".
std::string one_value(const std::string& name, const CLI::Option& option) {
  if (!takes_value(option)) return {};
  const bool text = option.get_description().find("text") != std::string::npos;
  if (!may_repeat(option))
    return text ? fmt::format("; {} takes one value: write a text with spaces in quotes", name)
                : "";
  return fmt::format("; {0} takes one value: write {0} before each{1}", name,
                     text ? ", and a text with spaces in quotes" : "");
}

/// A word taken apart: "--name", "--name=value", "-n", "-nvalue".
struct FlagWord {
  std::string name;
  std::string value;
  bool has_value = false;
};

FlagWord split_flag(std::string_view word) {
  if (word.starts_with("--")) {
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos) return {std::string(word), {}, false};
    return {std::string(word.substr(0, equals)), std::string(word.substr(equals + 1)), true};
  }
  return {std::string(word.substr(0, 2)), std::string(word.substr(2)), word.size() > 2};
}

bool looks_like_flag(std::string_view word) { return word.size() > 1 && word.front() == '-'; }

class Checker {
 public:
  explicit Checker(const CLI::App& command) : groups_(help_of(command.get_name()).groups) {
    for (const CLI::Option* option : command.get_options()) {
      if (is_positional(*option))
        positionals_ += static_cast<std::size_t>(option->get_items_expected_max());
      for (const std::string& name : option->get_lnames()) by_name_["--" + name] = option;
      for (const std::string& name : option->get_snames()) by_name_["-" + name] = option;
      options_.push_back(option);
    }
    names_ = flags_of(command);
  }

  void check(std::span<const char* const> words) {
    std::size_t given = 0;  // words that are no flags
    bool only_words = false;
    std::string hint;  // for a word that follows a flag's value
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::string_view word = words[i];
      if (only_words || !looks_like_flag(word)) {
        if (++given > positionals_) {
          throw UsageError(fmt::format("unexpected argument '{}'{}", word, hint));
        }
        hint.clear();
      } else if (word == "--") {
        only_words = true;
        hint.clear();
      } else {
        const FlagWord flag = split_flag(word);
        const CLI::Option& option = known(flag, word);
        if (option.get_name() == "--help") return;  // nothing else matters
        i += check_flag(flag, option, i + 1 < words.size() ? words[i + 1] : nullptr) ? 1 : 0;
        hint = one_value(flag.name, option);
      }
    }
    for (const CLI::Option* option : options_) {
      if (!option->get_required()) continue;
      if (is_positional(*option) ? given > 0 : values_.contains(option)) continue;
      throw UsageError(is_positional(*option)
                           ? fmt::format("{}: expected {}, found none", option->get_name(),
                                         option->get_description())
                           : fmt::format("{} is missing; expected {}", option->get_name(),
                                         option->get_description()));
    }
    for (const CLI::Option* option : options_) check_needs(*option);
  }

 private:
  /// Throws UsageError for a flag that was given and would have no effect.
  void check_needs(const CLI::Option& option) const {
    if (!values_.contains(&option)) return;
    const Flag* flag = find_flag(groups_, option.get_name());
    if (flag == nullptr || flag->needs.empty()) return;
    const Flag* other = find_flag(groups_, flag->needs);
    if (other == nullptr) return;
    const auto given = values_.find(by_name_.at(flag->needs));
    const std::vector<std::string> values =
        given == values_.end() ? std::vector{other->initial} : given->second;
    const auto fits = [&](const std::string& value) {
      return value.empty() ||
             std::ranges::find(flag->needed_values, value) != flag->needed_values.end();
    };
    if (std::ranges::any_of(values, fits)) return;
    throw UsageError(fmt::format("{}: has no effect with {} {}; leave it out, or give {} {}",
                                 option.get_name(), flag->needs, fmt::join(values, " and "),
                                 flag->needs, fmt::join(flag->needed_values, " or ")));
  }

  const CLI::Option& known(const FlagWord& flag, std::string_view word) const {
    const auto found = by_name_.find(flag.name);
    if (found != by_name_.end()) return *found->second;
    const std::string typed = flag.name.starts_with("--") ? flag.name : std::string(word);
    throw UsageError(fmt::format("unknown flag {}{}", typed, did_you_mean(near(typed))));
  }

  // Every letter is near every other: of those only the other case is meant.
  std::string near(const std::string& typed) const {
    if (typed.size() != 2) return nearest(typed, names_);
    const auto other = static_cast<char>(typed[1] ^ 0x20);
    const std::string swapped = {'-', other};
    return by_name_.contains(swapped) ? swapped : std::string();
  }

  // Not "-nice", which may well be a value, though it could be -n with "ice".
  bool is_flag(std::string_view word) const {
    if (!looks_like_flag(word)) return false;
    const FlagWord flag = split_flag(word);
    return by_name_.contains(flag.name) && (word.starts_with("--") || !flag.has_value);
  }

  /// next: the word behind the flag, null at the end. Returns whether it is the flag's value.
  bool check_flag(const FlagWord& flag, const CLI::Option& option, const char* next) {
    if (!takes_value(option)) {
      if (!flag.has_value) return false;
      throw UsageError(
          fmt::format("{}: takes no value, found '{}'; leave it out", flag.name, flag.value));
    }
    if (!flag.has_value && next == nullptr) {
      throw UsageError(
          fmt::format("{}: a value is missing; expected {}", flag.name, option.get_description()));
    }
    if (!flag.has_value && is_flag(next)) {
      throw UsageError(
          fmt::format("{}: a value is missing; expected {}, found the flag {}; if that is the "
                      "value, write {}={}",
                      flag.name, option.get_description(), next, option.get_name(), next));
    }
    const std::string value = flag.has_value ? flag.value : next;
    if (!flag.name.starts_with("--") && flag.has_value && value.starts_with('=')) {
      throw UsageError(fmt::format("{}: expected {}, found '{}'; write {} {}", flag.name,
                                   option.get_description(), value, flag.name, value.substr(1)));
    }
    if (value.empty()) {
      throw UsageError(fmt::format(
          "{}: expected {}, found ''{}", flag.name, option.get_description(),
          option.get_required() ? ""
                                : "; leave the flag out for the default" + default_text(option)));
    }
    std::vector<std::string>& values = values_[&option];
    values.push_back(value);
    if (values.size() > 1 && !may_repeat(option)) {
      throw UsageError(fmt::format("{}: given twice, '{}' and '{}'; expected once", flag.name,
                                   values.front(), value));
    }
    return !flag.has_value;
  }

  const std::vector<FlagGroup>& groups_;
  std::vector<const CLI::Option*> options_;
  std::map<std::string, const CLI::Option*> by_name_;
  std::vector<std::string> names_;
  std::map<const CLI::Option*, std::vector<std::string>> values_;  // in the order given
  std::size_t positionals_ = 0;
};

}  // namespace

void check_command_line(const CLI::App& command, std::span<const char* const> words) {
  Checker(command).check(words);
}

std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

}  // namespace topkv::cli
