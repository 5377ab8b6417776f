// Calls of tools as models write them. The texts are a model's: whatever they are, they are read
// within limits or found to be no calls.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace topkv::serve {

struct ToolCall {
  std::string name;
  std::string arguments;  ///< the text of a JSON object
};

/// Tools as a request lists them: [{"type": "function", "function": {"name", "parameters"}}].
using Tools = nlohmann::ordered_json;

/// {"name": …, "arguments" or "parameters": {…}}; none where it is nothing such.
std::optional<ToolCall> call_of_json(std::string_view text);
/// What stands between <tool_call> and </tool_call>.
std::optional<ToolCall> tagged_call(std::string_view text, const Tools& tools);
/// What stands behind [TOOL_CALLS]: a list, or NAME[ARGS]JSON with or without [CALL_ID]. Empty
/// where it is nothing such.
std::vector<ToolCall> listed_calls(std::string_view text);
/// A whole answer: an object, or several with ';' between them, each of which calls one of the
/// tools. Empty where it is nothing such.
std::vector<ToolCall> object_calls(std::string_view text, const Tools& tools);
/// Arguments alone: the text without white space around it, where it is a JSON object.
std::optional<std::string> arguments_of(std::string_view text);

}  // namespace topkv::serve
