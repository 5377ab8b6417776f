#include "src/cli/commands/manual.h"

#include <fmt/format.h>

#include "src/cli/commands.h"
#include "src/cli/flags/help.h"
#include "src/cli/flags/options.h"

namespace topkv::cli {
namespace {

// As text: a backslash and a hyphen would be read otherwise (hyphens as U+2010, which no shell
// takes), a line's first dot or apostrophe as a macro.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  if (!out.empty() && (out.front() == '.' || out.front() == '\'')) out.insert(0, "\\&");
  return out;
}

std::string example(const std::string& line) { return ".EX\n" + roff(line) + "\n.EE\n.PP\n"; }

std::string flags(const FlagGroup& group) {
  std::string text = group.title.empty() ? "" : fmt::format(".PP\n{}:\n", roff(group.title));
  for (const Flag& flag : group.flags) {
    text += fmt::format(".TP\n\\fB{}\\fR", roff(flag.names));
    if (!flag.value.name.empty()) text += fmt::format(" \\fI{}\\fR", roff(flag.value.name));
    text += "\n" + roff(flag.meaning);
    if (!flag.fallback().empty()) text += roff(fmt::format(" [{}]", flag.fallback()));
    text += "\n";
  }
  return text;
}

std::string section(const CommandHelp& command) {
  std::string text = fmt::format(".SS topkv {}\n\\fBtopkv {}\\fR {}\n.PP\n{}\n", command.name,
                                 command.name, roff(command.usage), roff(command.about));
  for (const FlagGroup& group : command.groups) text += flags(group);
  text += ".PP\nExamples:\n.PP\n";
  for (const std::string& line : command.examples) text += example(line);
  return text;
}

}  // namespace

std::string manual_text() {
  std::string text = fmt::format(
      ".TH TOPKV 1 \"\" \"topkv {}\" \"User Commands\"\n.SH NAME\ntopkv \\- {}\n"
      ".SH SYNOPSIS\n\\fBtopkv\\fR \\fICOMMAND\\fR [\\fIflags\\fR]\n.SH DESCRIPTION\n{}\n.PP\n{}\n",
      version(), "decode over a million tokens on a small machine", roff(main_about),
      roff(main_numbers));
  text += ".PP\nDefaults are in brackets.\n.SH COMMANDS\n";
  for (const CommandHelp& command : all_help()) text += section(command);
  text += fmt::format(
      ".SH EXIT STATUS\n.TP\n0\nsuccess\n.TP\n{}\nfailure; standard error says why on one line\n"
      ".TP\n{}\nthe command line is wrong\n.TP\n128 + N\nended by signal N\n",
      exit_error, exit_usage);
  text +=
      ".SH ENVIRONMENT\n.TP\n\\fBHF_HOME\\fR, \\fBHF_HUB_CACHE\\fR\nfolders that hold downloaded "
      "models, named org/name\n.TP\n\\fBCOLUMNS\\fR\nthe width of --help, in a pipe, too\n"
      ".TP\n\\fBNO_COLOR\\fR\nif set, no colours are printed\n.TP\n\\fBTOPKV_API_KEY\\fR\nthe key "
      "that topkv serve requires from clients\n";
  return text;
}

Run add_manual(CLI::App& app) {
  add_command(app, "manual");
  return [] {
    fmt::print("{}", manual_text());
    return 0;
  };
}

}  // namespace topkv::cli
