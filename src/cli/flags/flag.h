// A flag of the command, as data. The parser, help, the manual page, completions, the reference
// page and run.json read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/cli/terminal/parse_numbers.h"

namespace topkv::cli {

/// The value of a flag: how help shows it, and what it may be.
struct FlagValue {
  enum class Kind : std::uint8_t {
    none,         ///< the flag takes no value
    text,         ///< any text
    prose,        ///< in UTF-8
    device,       ///< auto, cpu, cuda or cuda:N
    choice,       ///< one of `choices`
    file,         ///< a path
    folder,       ///< a path
    model,        ///< what find_model finds
    description,  ///< a model that may have no weights
    count,        ///< 4096, 128K
    bytes,        ///< 8GiB
    real,         ///< 0.7
    seed          ///< of 64 bits
  };
  Kind kind = Kind::none;
  std::string name = {};                  ///< in help, such as N
  std::string expected = {};              ///< in errors: "a directory"
  std::vector<std::string> choices = {};  ///< values to complete
  double least = 0;                       ///< of a count or a real number
  double most = 0;
  bool above = false;                     ///< a real number is greater than `least`
  std::string word = {};                  ///< is accepted in place of a number, for no number
  bool repeats = false;                   ///< the flag may be given several times
  std::vector<std::string> endings = {};  ///< of files to complete beside folders
};

/// Makers of values. `expected` and `name` are FlagValue's members.
namespace value {

FlagValue text(std::string expected, std::string name, std::vector<std::string> completed = {});
FlagValue prose(std::string expected);
FlagValue device();
FlagValue file(std::string expected = "a file", std::vector<std::string> completed = {});
FlagValue folder(std::string expected = "a directory", std::vector<std::string> completed = {});
FlagValue model(FlagValue::Kind kind = FlagValue::Kind::model);
FlagValue context();
FlagValue choice(std::string name, std::vector<std::string> choices);
FlagValue count(std::int64_t least = 1, std::int64_t most = most_count);
FlagValue bytes();
FlagValue real(double least, double most, bool above = false);
FlagValue seed();
FlagValue or_word(FlagValue value, const std::string& word, const std::string& name = {});
FlagValue repeated(FlagValue value);

}  // namespace value

struct Flag {
  /// How run.json has the flag; if_given: only if it is not `initial`.
  enum class InConfig : std::uint8_t { always, if_given, none };

  Flag(std::string the_names, FlagValue the_value, std::string the_meaning = {},
       std::string the_initial = {}, std::string in_words = {})
      : names(std::move(the_names)),
        value(std::move(the_value)),
        meaning(std::move(the_meaning)),
        initial(std::move(the_initial)),
        otherwise(std::move(in_words)) {}

  std::string names;  ///< "-m, --model"; of an operand its name in errors, such as FILE
  FlagValue value;
  std::string meaning;    ///< begins in lower case
  std::string initial;    ///< the value without the flag
  std::string otherwise;  ///< what help says in place of `initial`
  InConfig in_config = InConfig::always;
  bool required = false;
  /// Another flag, and its values with which alone this flag has an effect; empty: it always has.
  std::string needs = {};
  std::vector<std::string> needed_values = {};

  /// What holds without the flag; empty: the meaning says it.
  const std::string& fallback() const { return otherwise.empty() ? initial : otherwise; }
  /// The name in run.json.
  std::string config_name() const;
};

/// The names, each with its dashes: "-m" and "--model" of "-m, --model".
std::vector<std::string> names_of(const Flag& flag);

/// Reads a text into a variable. Throw UsageError, which names the flag, for a text that the flag
/// does not take, and what find_model throws.
void read_value(const Flag& flag, const std::string& text, std::string& to);
void read_value(const Flag& flag, const std::string& text, std::int64_t& to);
void read_value(const Flag& flag, const std::string& text, std::uint64_t& to);
void read_value(const Flag& flag, const std::string& text, double& to);

template <class T>
void read_value(const Flag& flag, const std::string& text, std::optional<T>& to) {
  if (text == flag.value.word) return to.reset();
  read_value(flag, text, to.emplace());
}

/// The texts of a flag that may be given several times.
template <class T>
void read_value(const Flag& flag, const std::string& text, std::vector<T>& to) {
  read_value(flag, text, to.emplace_back());
}

}  // namespace topkv::cli
