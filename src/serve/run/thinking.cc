#include "src/serve/run/thinking.h"

#include <fmt/format.h>

#include "src/core/format/ordered_json.h"
#include "src/serve/request/json_text.h"
#include "src/serve/request/problem.h"

namespace topkv::serve {
namespace {

/// A template's variable that turns thinking on and off; null: it has none.
const char* switch_of(const std::string& source) {
  if (source.find("enable_thinking") != source.npos) return "enable_thinking";  // Qwen3, SmolLM3
  if (source.find("thinking is defined") != source.npos) return "thinking";     // DeepSeek-V3.1
  return nullptr;
}

const char* effort_of(Thinking thinking) {
  switch (thinking) {
    case Thinking::low:
      return "low";
    case Thinking::medium:
      return "medium";
    case Thinking::high:
      return "high";
    default:
      return nullptr;
  }
}

}  // namespace

std::string variables_with_thinking(const AnswerRequest& request, const std::string& source,
                                    const AnswerForm& form) {
  const bool by_template = request.thinking == Thinking::by_template;
  const char* const on_off = switch_of(source);
  // An answer that conforms to a schema from its first token on has no place to think.
  const bool conforms = !request.schema.text.empty();
  if (by_template && !(conforms && on_off != nullptr)) return request.variables;
  const bool off = by_template || request.thinking == Thinking::off;
  if (conforms && !off)
    throw Problem(400,
                  fmt::format("{} with thinking: the answer conforms from its first token on, and "
                              "thinks nothing before; leave one of them out",
                              request.schema.field),
                  request.schema.field, "unsupported_value");
  if (!form.channels && form.think.empty()) {
    if (off) return request.variables;
    throw Problem(400,
                  "the model does not support thinking; leave out what asks for it (think, or "
                  "reasoning.effort)",
                  {}, "unsupported_value");
  }
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  if (!request.variables.empty()) variables = parse_ordered_json(request.variables, "variables");
  const char* const effort = effort_of(request.thinking);
  if (effort != nullptr && source.find("reasoning_effort") != source.npos)
    variables["reasoning_effort"] = effort;
  else if (on_off != nullptr)
    variables[on_off] = !off;
  else if (off)
    throw Problem(400,
                  "the model's chat template cannot turn its thinking off; leave out what asks for "
                  "it (think, or reasoning.effort)",
                  {}, "unsupported_value");
  return variables.empty() ? std::string() : json_text(variables);
}

}  // namespace topkv::serve
