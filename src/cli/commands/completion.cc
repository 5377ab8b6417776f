#include "src/cli/commands/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string_view>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/flags/bind.h"
#include "src/cli/flags/help.h"

namespace topkv::cli {
namespace {

using Kind = FlagValue::Kind;

bool any_file(const FlagValue& value) { return value.kind == Kind::file; }

bool folders(const FlagValue& value) {
  return value.kind == Kind::folder || !value.endings.empty();
}

std::vector<Flag> flags_of(const CommandHelp& command) {
  std::vector<Flag> flags;
  for (const FlagGroup& group : command.groups)
    flags.insert(flags.end(), group.flags.begin(), group.flags.end());
  flags.push_back({"-h, --help", {}, "its flags"});
  return flags;
}

FlagValue operand_of(const CommandHelp& command) {
  return command.operand.empty() ? FlagValue() : command.operand.front().value;
}

std::string command_names() {
  std::string names = "help";
  for (const CommandHelp& command : all_help()) names += " " + command.name;
  return names;
}

// 'text' as fish reads it.
std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\\') out += '\\';
    out += c == '\'' ? "’" : std::string(1, c);
  }
  return out + "'";
}

// In zsh's descriptions brackets, colons and backslashes have a meaning.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c == '\'' ? "’" : std::string(1, c);
  }
  return out;
}

// What zsh does in that place: files of these kinds, and folders; where there are none, all files.
std::string zsh_action(const FlagValue& value) {
  if (any_file(value)) return "_files";
  const std::vector<std::string>& kinds = value.endings;
  if (kinds.size() == 1) return fmt::format("_files -g \"*.{}\"", kinds.front());
  if (!kinds.empty()) return fmt::format("_files -g \"*.({})\"", fmt::join(kinds, "|"));
  if (folders(value)) return "_files -/";
  return value.choices.empty()
             ? " "
             : fmt::format("({})", zsh_text(fmt::format("{}", fmt::join(value.choices, " "))));
}

// The variables that tell bash_completion's script the same.
std::string bash_sets(const FlagValue& value) {
  std::string sets;
  if (!value.choices.empty()) sets += fmt::format("words='{}' ", fmt::join(value.choices, " "));
  if (any_file(value)) sets += "files=1 ";
  if (folders(value)) sets += fmt::format("folders=1 kinds='{}' ", fmt::join(value.endings, " "));
  return sets;
}

// And fish: flags of `complete`.
std::string fish_offers(const FlagValue& value) {
  std::string offers = fmt::format("{}", fmt::join(value.choices, " "));
  if (folders(value)) {
    offers += fmt::format("{}(__topkv_files {})", offers.empty() ? "" : " ",
                          fmt::join(value.endings, " "));
  }
  return (any_file(value) ? " -F" : " -f") + (offers.empty() ? "" : " -a " + fish_quoted(offers));
}

}  // namespace

std::string bash_completion() {
  std::string text = fmt::format(
      "# bash completion of topkv\n"
      "_topkv() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}\n"
      "  local flags= files= folders= kinds= kind words=\n"
      "  if [[ $COMP_CWORD -eq 1 ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W '{} --help --version' -- \"$word\")\n"
      "    return\n"
      "  fi\n"
      "  case ${{COMP_WORDS[1]}} in\n"
      "    help) words='{}' ;;\n",
      command_names(), command_names());
  for (const CommandHelp& command : all_help()) {
    std::string flags;
    std::string values;
    for (const Flag& flag : flags_of(command)) {
      const std::vector<std::string> names = names_of(flag);
      flags += (flags.empty() ? "" : " ") + fmt::format("{}", fmt::join(names, " "));
      if (flag.value.kind == Kind::none) continue;
      const std::string sets = bash_sets(flag.value);
      values +=
          fmt::format("        {}) {};;\n", fmt::join(names, "|"), sets.empty() ? "return " : sets);
    }
    text +=
        fmt::format("    {})\n      case $before in\n{}        *) flags='{}' {};;\n      esac ;;\n",
                    command.name, values, flags, bash_sets(operand_of(command)));
  }
  text +=
      "  esac\n"
      "  if [[ $word == -* ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$word\")\n"
      "    return\n"
      "  fi\n"
      "  if [[ -n $files$folders ]]; then compopt -o filenames; fi\n"
      "  mapfile -t COMPREPLY < <(\n"
      "    if [[ -n $words ]]; then compgen -W \"$words\" -- \"$word\"; fi\n"
      "    if [[ -n $files ]]; then compgen -f -- \"$word\"\n"
      "    elif [[ -n $folders ]]; then\n"
      "      compgen -d -- \"$word\"\n"
      "      for kind in $kinds; do compgen -f -X \"!*.$kind\" -- \"$word\"; done\n"
      "    fi\n"
      "  )\n"
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
      "    help) _describe command commands ;;\n";
  for (const CommandHelp& command : all_help()) {
    text += fmt::format("    {})\n      _arguments -s", command.name);
    for (const Flag& flag : flags_of(command)) {
      for (const std::string& name : names_of(flag)) {
        text += fmt::format(" \\\n        '*{}[{}]", name, zsh_text(flag.meaning));
        if (flag.value.kind != Kind::none)
          text += fmt::format(":{}:{}", zsh_text(flag.value.name), zsh_action(flag.value));
        text += "'";
      }
    }
    for (const Flag& operand : command.operand) {
      text += fmt::format(" \\\n        '*:{}:{}'", zsh_text(operand.value.name),
                          zsh_action(operand.value));
    }
    text += " ;;\n";
  }
  return text +
         "  esac\n}\n[[ $funcstack[1] == _topkv ]] && _topkv \"$@\" || compdef _topkv topkv\n";
}

std::string fish_completion() {
  std::string text =
      "# fish completion of topkv\n"
      "function __topkv_files -d 'folders, and files whose names end so'\n"
      "    __fish_complete_path (commandline -ct) |\n"
      "        string match -re '(?:/|\\.(?:'(string join '|' $argv)'))(?:\\t.*)?$'\n"
      "end\n";
  for (const CommandHelp& command : all_help()) {
    text += fmt::format("complete -c topkv -n __fish_use_subcommand -f -a {} -d {}\n", command.name,
                        fish_quoted(command.summary));
  }
  text += "complete -c topkv -n __fish_use_subcommand -f -a help -d 'flags of a command'\n";
  text += fmt::format("complete -c topkv -n '__fish_seen_subcommand_from help' -f -a '{}'\n",
                      command_names());
  for (const CommandHelp& command : all_help()) {
    text += fmt::format("complete -c topkv -n '__fish_seen_subcommand_from {}'{}\n", command.name,
                        fish_offers(operand_of(command)));
    for (const Flag& flag : flags_of(command)) {
      text += fmt::format("complete -c topkv -n '__fish_seen_subcommand_from {}'", command.name);
      for (const std::string& name : names_of(flag)) {
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (flag.value.kind != Kind::none) text += " -r" + fish_offers(flag.value);
      text += " -d " + fish_quoted(flag.meaning) + "\n";
    }
  }
  return text;
}

Run add_completion(CLI::App& app) {
  const auto shell = std::make_shared<std::string>();
  FlagBinder bind(*add_command(app, "completion"));
  bind.operand(*shell);
  return [shell] {
    fmt::print("{}", *shell == "bash"  ? bash_completion()
                     : *shell == "zsh" ? zsh_completion()
                                       : fish_completion());
    return 0;
  };
}

}  // namespace topkv::cli
