#include "src/cli/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/help.h"

namespace topkv::cli {
namespace {

// What stands in the place of a value.
enum class Value { none, words, file, folder, other };

Value value_of(const FlagHelp& flag) {
  if (flag.value.empty()) return Value::none;
  if (flag.value == "FILE") return Value::file;
  if (flag.value == "DIR") return Value::folder;
  return flag.choices.empty() ? Value::other : Value::words;
}

std::vector<FlagHelp> flags_of(const CommandHelp& command) {
  std::vector<FlagHelp> flags;
  for (const FlagGroup& group : command.groups)
    flags.insert(flags.end(), group.flags.begin(), group.flags.end());
  flags.push_back({"-h, --help", "", "its flags"});
  return flags;
}

std::string command_names() {
  std::string names = "help";
  for (const CommandHelp& command : all_help()) names += " " + command.name;
  return names;
}

// 'text', for bash, zsh and fish alike: no text here has a quote but in fish, which escapes it.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "’" : std::string(1, c);
  return out + "'";
}

// In zsh's descriptions brackets and colons have a meaning.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':') out += '\\';
    out += c == '\'' ? "’" : std::string(1, c);
  }
  return out;
}

std::string zsh_value(const FlagHelp& flag) {
  switch (value_of(flag)) {
    case Value::none:
      return "";
    case Value::words:
      return fmt::format(":{}:({})", flag.value, fmt::join(flag.choices, " "));
    case Value::file:
      return ":file:_files";
    case Value::folder:
      return ":folder:_files -/";
    case Value::other:
      return fmt::format(":{}: ", zsh_text(flag.value));
  }
  return "";
}

}  // namespace

std::string bash_completion() {
  std::string text = fmt::format(
      "# bash completion of topkv\n"
      "_topkv() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}\n"
      "  local flags= files= folders= words=\n"
      "  if [[ $COMP_CWORD -eq 1 ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W '{} --help --version' -- \"$word\")\n"
      "    return\n"
      "  fi\n"
      "  case ${{COMP_WORDS[1]}} in\n"
      "    help) words='{}' ;;\n"
      "    completion) words='bash zsh fish' ;;\n",
      command_names(), command_names());
  for (const CommandHelp& command : all_help()) {
    if (command.groups.empty()) continue;
    std::string flags;
    std::string values;
    for (const FlagHelp& flag : flags_of(command)) {
      const std::vector<std::string> names = names_of(flag);
      flags += (flags.empty() ? "" : " ") + fmt::format("{}", fmt::join(names, " "));
      const std::string pattern = fmt::format("{}", fmt::join(names, "|"));
      switch (value_of(flag)) {
        case Value::none:
          break;
        case Value::words:
          values +=
              fmt::format("        {}) words='{}' ;;\n", pattern, fmt::join(flag.choices, " "));
          break;
        case Value::file:
          values += fmt::format("        {}) files=1 ;;\n", pattern);
          break;
        case Value::folder:
          values += fmt::format("        {}) folders=1 ;;\n", pattern);
          break;
        case Value::other:
          values += fmt::format("        {}) return ;;\n", pattern);
          break;
      }
    }
    text += fmt::format(
        "    {})\n      case $before in\n{}        *) flags='{}' files=1 ;;\n      esac ;;\n",
        command.name, values, flags);
  }
  text +=
      "  esac\n"
      "  if [[ $word == -* ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$word\")\n"
      "  elif [[ -n $words ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
      "  elif [[ -n $folders ]]; then\n"
      "    compopt -o filenames\n"
      "    mapfile -t COMPREPLY < <(compgen -d -- \"$word\"; compgen -f -X '!*.gguf' -- "
      "\"$word\")\n"
      "  elif [[ -n $files ]]; then\n"
      "    compopt -o filenames\n"
      "    mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
      "  fi\n"
      "}\n"
      "complete -F _topkv topkv\n";
  return text;
}

std::string zsh_completion() {
  std::string text =
      "#compdef topkv\n"
      "_topkv() {\n"
      "  local -a commands\n"
      "  commands=(\n";
  for (const CommandHelp& command : all_help())
    text += fmt::format("    '{}:{}'\n", command.name, zsh_text(command.summary));
  text +=
      "    'help:flags of a command'\n"
      "  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  local command=$words[2]\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  case $command in\n"
      "    help) _describe command commands ;;\n"
      "    completion) _arguments '1:shell:(bash zsh fish)' ;;\n";
  for (const CommandHelp& command : all_help()) {
    if (command.groups.empty()) continue;
    text += fmt::format("    {})\n      _arguments -s", command.name);
    for (const FlagHelp& flag : flags_of(command)) {
      for (const std::string& name : names_of(flag)) {
        text +=
            fmt::format(" \\\n        '*{}[{}]{}'", name, zsh_text(flag.meaning), zsh_value(flag));
      }
    }
    text += " \\\n        '*:file:_files' ;;\n";
  }
  return text +
         "  esac\n}\n[[ $funcstack[1] == _topkv ]] && _topkv \"$@\" || compdef _topkv topkv\n";
}

std::string fish_completion() {
  std::string text = "# fish completion of topkv\n";
  for (const CommandHelp& command : all_help()) {
    text += fmt::format("complete -c topkv -n __fish_use_subcommand -f -a {} -d {}\n", command.name,
                        quoted(command.summary));
  }
  text += "complete -c topkv -n __fish_use_subcommand -f -a help -d 'flags of a command'\n";
  text += fmt::format(
      "complete -c topkv -n '__fish_seen_subcommand_from help' -f -a '{}'\n"
      "complete -c topkv -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'\n",
      command_names());
  for (const CommandHelp& command : all_help()) {
    if (command.groups.empty()) continue;
    for (const FlagHelp& flag : flags_of(command)) {
      text += fmt::format("complete -c topkv -n '__fish_seen_subcommand_from {}'", command.name);
      for (const std::string& name : names_of(flag)) {
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      switch (value_of(flag)) {
        case Value::none:
          break;
        case Value::words:
          text += fmt::format(" -x -a '{}'", fmt::join(flag.choices, " "));
          break;
        case Value::file:
          text += " -r -F";
          break;
        case Value::folder:
          text += " -r -F";
          break;
        case Value::other:
          text += " -x";
          break;
      }
      text += " -d " + quoted(flag.meaning) + "\n";
    }
  }
  return text;
}

Run add_completion(CLI::App& app) {
  CLI::App* command = add_command(app, "completion");
  const auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return [shell] {
    fmt::print("{}", *shell == "bash"  ? bash_completion()
                     : *shell == "zsh" ? zsh_completion()
                                       : fish_completion());
    return 0;
  };
}

}  // namespace topkv::cli
