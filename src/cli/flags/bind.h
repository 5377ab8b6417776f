// Variables that the flags of a command are read into.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "src/cli/flags/shared_flags.h"

namespace topkv::cli {

/// The value of a flag that is not given.
template <class T>
T initial_value(const Flag& flag) {
  T value{};
  if constexpr (!std::is_same_v<T, bool>) {
    if (!flag.initial.empty()) read_value(flag, flag.initial, value);
  }
  return value;
}

/// Has a command take its flags, which the table of help.h has, into variables that outlive it.
class FlagBinder {
 public:
  explicit FlagBinder(CLI::App& command);

  /// Sets `to` to the default of the flag, and to what the command line gives. If the command has
  /// no such flag, `to` keeps the default that other commands have. The same holds for one value
  /// of a flag that may be given several times.
  template <class T>
  void operator()(std::string_view name, T& to) {
    const Flag* own = find_flag(help_.groups, name);
    const Flag& flag = own != nullptr ? *own : shared_flag(name);
    to = initial_value<T>(flag);
    constexpr bool takes_several = requires { to.emplace_back(); };
    if (own != nullptr && (takes_several || !flag.value.repeats)) add(flag, to);
  }

  /// Binds the members of structs by visit_flags.
  template <class... Flags>
  void all(Flags&... flags) {
    (visit_flags(flags, *this), ...);
  }

  /// Binds the operand of the command.
  template <class T>
  void operand(T& to) {
    add(help_.operand.front(), to);
  }

 private:
  void add(const Flag& flag, bool& to) { command_.add_flag(flag.names, to); }
  template <class T>
  void add(const Flag& flag, T& to) {
    add_option(flag, [&flag, &to](const std::vector<std::string>& texts) {
      to = T{};
      for (const std::string& text : texts) read_value(flag, text, to);
      return true;
    });
  }
  void add_option(const Flag& flag, const CLI::callback_t& read);

  CLI::App& command_;
  const CommandHelp& help_;
};

}  // namespace topkv::cli
