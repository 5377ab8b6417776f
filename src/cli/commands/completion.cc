#include "src/cli/commands/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/flags/help.h"

namespace topkv::cli {
namespace {

// What stands in the place of a value, or without a flag.
struct Value {
  bool files = false;     // any
  bool contexts = false;  // topkv prefill's files
  bool models = false;    // folders, and GGUF files
  std::vector<std::string> words = {};

  bool none() const { return !files && !contexts && !models && words.empty(); }
  // How names of files end that are offered, beside folders.
  std::vector<std::string> kinds() const {
    std::vector<std::string> kinds;
    if (models) kinds.emplace_back("gguf");
    if (contexts) kinds.emplace_back("tkv");
    return kinds;
  }
};

Value value_of(const FlagHelp& flag) {
  return {.files = flag.value == "FILE",
          .contexts = false,
          .models = flag.value == "DIR",
          .words = flag.choices};
}

Value operand_of(const CommandHelp& command) {
  Value value;
  std::string_view rest = command.operand;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('|'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    if (part == "DIR") {
      value.models = true;
    } else if (part == "FILE.tkv") {
      value.contexts = true;
    } else {
      value.words.emplace_back(part);
    }
  }
  return value;
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
std::string zsh_action(const Value& value) {
  if (value.files) return "_files";
  const std::vector<std::string> kinds = value.kinds();
  if (kinds.size() == 1) return fmt::format("_files -g \"*.{}\"", kinds.front());
  if (!kinds.empty()) return fmt::format("_files -g \"*.({})\"", fmt::join(kinds, "|"));
  return value.words.empty()
             ? " "
             : fmt::format("({})", zsh_text(fmt::format("{}", fmt::join(value.words, " "))));
}

// The variables that tell bash_completion's script the same.
std::string bash_sets(const Value& value) {
  std::string sets;
  if (!value.words.empty()) sets += fmt::format("words='{}' ", fmt::join(value.words, " "));
  if (value.files) sets += "files=1 ";
  if (!value.kinds().empty()) sets += fmt::format("kinds='{}' ", fmt::join(value.kinds(), " "));
  return sets;
}

// And fish: flags of `complete`.
std::string fish_offers(const Value& value) {
  std::string offers = fmt::format("{}", fmt::join(value.words, " "));
  if (!value.kinds().empty()) {
    offers += fmt::format("{}(__topkv_files {})", offers.empty() ? "" : " ",
                          fmt::join(value.kinds(), " "));
  }
  return (value.files ? " -F" : " -f") + (offers.empty() ? "" : " -a " + fish_quoted(offers));
}

}  // namespace

std::string bash_completion() {
  std::string text = fmt::format(
      "# bash completion of topkv\n"
      "_topkv() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}\n"
      "  local flags= files= kinds= kind words=\n"
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
      if (flag.value.empty()) continue;
      const Value value = value_of(flag);
      values += fmt::format("        {}) {};;\n", fmt::join(names, "|"),
                            value.none() ? "return " : bash_sets(value));
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
      "  if [[ -n $files$kinds ]]; then compopt -o filenames; fi\n"
      "  mapfile -t COMPREPLY < <(\n"
      "    if [[ -n $words ]]; then compgen -W \"$words\" -- \"$word\"; fi\n"
      "    if [[ -n $files ]]; then compgen -f -- \"$word\"\n"
      "    elif [[ -n $kinds ]]; then\n"
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
      "    help) _describe command commands ;;\n"
      "    completion) _arguments '1:shell:(bash zsh fish)' ;;\n";
  for (const CommandHelp& command : all_help()) {
    if (command.groups.empty()) continue;
    text += fmt::format("    {})\n      _arguments -s", command.name);
    for (const FlagHelp& flag : flags_of(command)) {
      for (const std::string& name : names_of(flag)) {
        text += fmt::format(" \\\n        '*{}[{}]", name, zsh_text(flag.meaning));
        if (!flag.value.empty())
          text += fmt::format(":{}:{}", zsh_text(flag.value), zsh_action(value_of(flag)));
        text += "'";
      }
    }
    if (const Value operand = operand_of(command); !operand.none()) {
      text += fmt::format(" \\\n        '*:{}:{}'", zsh_text(command.operand), zsh_action(operand));
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
  text += fmt::format(
      "complete -c topkv -n '__fish_seen_subcommand_from help' -f -a '{}'\n"
      "complete -c topkv -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'\n",
      command_names());
  for (const CommandHelp& command : all_help()) {
    if (command.groups.empty()) continue;
    text += fmt::format("complete -c topkv -n '__fish_seen_subcommand_from {}'{}\n", command.name,
                        fish_offers(operand_of(command)));
    for (const FlagHelp& flag : flags_of(command)) {
      text += fmt::format("complete -c topkv -n '__fish_seen_subcommand_from {}'", command.name);
      for (const std::string& name : names_of(flag)) {
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (!flag.value.empty()) text += " -r" + fish_offers(value_of(flag));
      text += " -d " + fish_quoted(flag.meaning) + "\n";
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
