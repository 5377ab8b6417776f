#include "src/cli/commands/chat_answers.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/format/ordered_json.h"
#include "src/core/text/printable.h"
#include "src/serve/answer/answer_parts.h"
#include "topkv/error.h"

namespace topkv::cli {

std::string template_variables(const TemplateFlags& flags) {
  Json variables = Json::object();
  for (const std::string& one : flags.variables) {
    const std::size_t at = one.find('=');
    const std::string name = one.substr(0, at);
    const auto refuse = [&](const std::string& expected) {
      throw UsageError(fmt::format("--template-arg: found '{}'; expected {}",
                                   printable_beginning(one), expected));
    };
    if (at == one.npos || name.empty()) refuse("NAME=JSON, such as enable_thinking=false");
    if (variables.contains(name)) refuse("each name once");
    try {
      variables[name] = parse_ordered_json(one.substr(at + 1), "--template-arg");
    } catch (const FileError&) {
      refuse("a value in JSON behind '=': false, 3, or a text in quotes, '\"low\"'");
    }
  }
  return variables.empty() ? std::string()
                           : variables.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ChatAnswers::ChatAnswers(const ChatTemplate& chat, const Tokenizer& tokenizer)
    : form_(serve::answer_form(chat.source())), tokenizer_(&tokenizer) {}

void ChatAnswers::prepare(GenerateOptions& options) const {
  options.spelled = form_.spelled(*tokenizer_, false);
}

void ChatAnswers::divide(AnswerStream& stream, std::span<const Token> prompt, bool hush) const {
  const bool in_thought = form_.ends_in_thought(*tokenizer_, prompt);
  stream.divide(serve::AnswerParts(form_, in_thought, serve::Tools::array()), hush);
}

}  // namespace topkv::cli
