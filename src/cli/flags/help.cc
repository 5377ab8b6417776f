#include "src/cli/flags/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "src/cli/terminal/text_layout.h"

namespace topkv::cli {
namespace {

// From here on meanings stand beside their flags; below, under them.
constexpr std::size_t two_columns = 64;
constexpr std::size_t flag_column = 26;
constexpr std::size_t under = 6;

std::string meaning_of(const Flag& flag) {
  const std::string& fallback = flag.fallback();
  return fallback.empty() ? flag.meaning : fmt::format("{} [{}]", flag.meaning, fallback);
}

std::string listed(const std::string& label, const std::string& text, std::size_t width,
                   std::size_t column) {
  if (width >= two_columns && label.size() + 2 <= column)
    return labelled(label, text, width, column);
  const std::size_t indent = width >= two_columns ? column : under;
  return label + "\n" + labelled("", text, width, indent);
}

// A command line on lines that a shell reads as one: broken between words, not within quotes.
std::string example_text(const std::string& line, std::size_t width) {
  std::vector<std::string> words(1);
  char quote = 0;
  for (const char c : line) {
    if (c == ' ' && quote == 0) {
      words.emplace_back();
      continue;
    }
    if (c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    }
    words.back() += c;
  }
  std::string text;
  std::string open = "  " + words.front();
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::size_t behind = i + 1 < words.size() ? 2 : 0;  // " \"
    if (width_of(open) + 1 + width_of(words[i]) + behind > width) {
      text += open + " \\\n";
      open = "      " + words[i];
    } else {
      open += " " + words[i];
    }
  }
  return text + open + "\n";
}

std::string examples_text(const std::vector<std::string>& examples, std::size_t width) {
  std::string text = "\nexamples:\n";
  for (const std::string& example : examples) text += example_text(example, width);
  return text;
}

}  // namespace

const std::vector<CommandHelp>& all_help() {
  static const std::vector<CommandHelp> all = [] {
    std::vector<CommandHelp> commands = model_commands();
    std::ranges::move(tool_commands(), std::back_inserter(commands));
    return commands;
  }();
  return all;
}

const CommandHelp& help_of(std::string_view command) {
  for (const CommandHelp& help : all_help()) {
    if (help.name == command) return help;
  }
  throw std::out_of_range(fmt::format("no help of '{}'", command));
}

const Flag* find_flag(const std::vector<FlagGroup>& groups, std::string_view name) {
  for (const FlagGroup& group : groups) {
    for (const Flag& flag : group.flags) {
      const std::string_view names = flag.names;
      if (names.substr(names.find("--")) == name) return &flag;
    }
  }
  return nullptr;
}

std::string help_text(const CommandHelp& command, std::size_t width) {
  std::string text =
      labelled("usage: topkv " + command.name + " ", command.usage, width, under + 1);
  text += "\n" + labelled("", command.about, width, 0);
  bool defaults = false;
  for (const FlagGroup& group : command.groups) {
    text += group.title.empty() ? "\n" : "\n" + labelled("", group.title + ":", width, 0);
    for (const Flag& flag : group.flags) {
      const std::string value = flag.value.name.empty() ? "" : " " + flag.value.name;
      const std::string label =
          flag.names.starts_with("--") ? "      " + flag.names : "  " + flag.names;
      text += listed(width >= two_columns ? label + value : "  " + flag.names + value,
                     meaning_of(flag), width, flag_column);
      defaults = defaults || !flag.fallback().empty();
    }
  }
  if (defaults) text += "\nDefaults are in brackets.\n";
  return text + examples_text(command.examples, width);
}

std::string main_help_text(std::size_t width) {
  std::string text = "usage: topkv COMMAND [flags]\n\n" + labelled("", main_about, width, 0) + "\n";
  for (const CommandHelp& command : all_help())
    text += labelled("  " + command.name, command.summary, width, 14);
  text +=
      "\n" + labelled("  help COMMAND", "print its flags, as topkv COMMAND --help does", width, 18);
  text += labelled("  -h, --help", "print this text", width, 18);
  text += labelled("  --version", "print the version", width, 18);
  text += "\n" + labelled("", main_numbers, width, 0);
  return text + examples_text({"topkv needle -m models/needle-14m -c 1M",
                               "topkv generate -m models/needle-14m -f notes.txt -p \"The meeting "
                               "was moved to\""},
                              width);
}

}  // namespace topkv::cli
