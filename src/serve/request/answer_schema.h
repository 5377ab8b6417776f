// JSON schemas that requests hold their answers to.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "src/serve/request/fields.h"
#include "src/serve/request/tool_calls.h"

namespace topkv::serve {

/// What the text of an answer conforms to.
struct AnswerSchema {
  std::string text = {};   ///< a JSON schema; empty: any text
  std::string field = {};  ///< of the request, that asked for it
  bool calls = false;      ///< the answer is a call of a tool: {"name": …, "arguments": {…}}
};

/// Reads "response_format" of a chat: {"type": "text"}, {"type": "json_object"} or {"type":
/// "json_schema", "json_schema": {"schema"}}. body: that of the request. Throws Problem (400).
AnswerSchema take_response_format(Fields& fields, std::string_view body);
/// Reads "format" of "text" in POST /v1/responses: the same, in one object. ordered: the field
/// "text". Throws Problem (400).
AnswerSchema take_text_format(Fields& text, const nlohmann::ordered_json& ordered);
/// Reads "format" of Ollama's routes: "json", or a schema. Throws Problem (400).
AnswerSchema take_ollama_format(Fields& fields, std::string_view body);

/// What "tool_choice" asks for.
struct ToolChoice {
  bool none = false;      ///< no tool may be called
  bool required = false;  ///< one is called
  std::string name = {};  ///< this one; empty: any
};

/// Reads "tool_choice". responses: a named function is {"type", "name"}, as POST /v1/responses has
/// it. Throws Problem (400).
ToolChoice take_tool_choice(Fields& fields, bool responses);
/// Returns the schema of a call of one of the tools, or of the one that the choice names. choice:
/// required. Throws Problem (400) if there is none.
AnswerSchema schema_of_call(const Tools& tools, const ToolChoice& choice);

/// Refuses a schema beside tools.
void check_schema_beside_tools(const AnswerSchema& schema, const Tools& tools);

}  // namespace topkv::serve
