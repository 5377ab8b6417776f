#include "src/serve/request/tool_calls.h"

#include <algorithm>

#include "src/core/format/ordered_json.h"
#include "src/core/text/stripped.h"
#include "src/serve/request/json_text.h"
#include "topkv/error.h"

namespace topkv::serve {
namespace {

using Json = nlohmann::ordered_json;

std::optional<Json> json_of(std::string_view text) {
  try {
    return parse_ordered_json(stripped(text), "a tool call");
  } catch (const FileError&) {
    return {};
  }
}

std::optional<ToolCall> call_of(const Json& json) {
  if (!json.is_object()) return {};
  const auto name = json.find("name");
  if (name == json.end() || !name->is_string()) return {};
  for (const char* key : {"arguments", "parameters"}) {
    const auto arguments = json.find(key);
    if (arguments == json.end()) continue;
    if (arguments->is_object()) return ToolCall{name->get<std::string>(), json_text(*arguments)};
    if (!arguments->is_string()) return {};
    std::optional<std::string> text = arguments_of(arguments->get<std::string>());
    if (!text) return {};
    return ToolCall{name->get<std::string>(), *std::move(text)};
  }
  return {};
}

/// The function of the tools that has the name; null: none.
const Json* function_of(const Tools& tools, const std::string& name) {
  for (const Json& tool : tools) {
    const auto function = tool.find("function");
    if (function == tool.end() || !function->is_object()) continue;
    if (const auto at = function->find("name"); at != function->end() && *at == name)
      return &*function;
  }
  return nullptr;
}

bool is_text(const Json* function, const std::string& parameter) {
  const Json* at = function;
  for (const std::string& key :
       {std::string("parameters"), std::string("properties"), parameter, std::string("type")}) {
    if (at == nullptr || !at->is_object()) return false;
    const auto next = at->find(key);
    at = next == at->end() ? nullptr : &*next;
  }
  return at != nullptr && *at == "string";
}

/// <function=NAME><parameter=KEY>VALUE</parameter>…</function>
std::optional<ToolCall> call_of_elements(std::string_view text, const Tools& tools) {
  constexpr std::string_view function_begin = "<function=";
  constexpr std::string_view parameter_begin = "<parameter=";
  constexpr std::string_view parameter_end = "</parameter>";
  std::size_t at = text.find('>');
  if (!text.starts_with(function_begin) || at == text.npos) return {};
  const std::string name(text.substr(function_begin.size(), at - function_begin.size()));
  const Json* const function = function_of(tools, name);
  Json arguments = Json::object();
  while ((at = text.find(parameter_begin, at)) != text.npos) {
    const std::size_t key_end = text.find('>', at);
    const std::size_t end = key_end == text.npos ? text.npos : text.find(parameter_end, key_end);
    if (end == text.npos || arguments.size() >= max_ordered_keys) return {};
    const std::size_t key_begin = at + parameter_begin.size();
    const std::string key(text.substr(key_begin, key_end - key_begin));
    std::string_view value = text.substr(key_end + 1, end - key_end - 1);
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    std::optional<Json> json = is_text(function, key) ? std::nullopt : json_of(value);
    arguments[key] = json ? *std::move(json) : Json(std::string(value));
    at = end + parameter_end.size();
  }
  return ToolCall{name, json_text(arguments)};
}

}  // namespace

std::optional<std::string> arguments_of(std::string_view text) {
  const std::optional<Json> json = json_of(text);
  if (!json || !json->is_object()) return {};
  return std::string(stripped(text));
}

std::optional<ToolCall> call_of_json(std::string_view text) {
  const std::optional<Json> json = json_of(text);
  return json ? call_of(*json) : std::nullopt;
}

std::optional<ToolCall> tagged_call(std::string_view text, const Tools& tools) {
  text = stripped(text);
  return text.starts_with('<') ? call_of_elements(text, tools) : call_of_json(text);
}

std::vector<ToolCall> listed_calls(std::string_view text) {
  constexpr std::string_view begin = "[TOOL_CALLS]";
  constexpr std::string_view arguments_begin = "[ARGS]";
  std::vector<ToolCall> calls;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(begin), text.size());
    const std::string_view one = stripped(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + begin.size()));
    if (one.starts_with('[')) {
      const std::optional<Json> list = json_of(one);
      if (!list || !list->is_array()) return {};
      for (const Json& item : *list) {
        std::optional<ToolCall> call = call_of(item);
        if (!call) return {};
        calls.push_back(*std::move(call));
      }
      continue;
    }
    const std::size_t at = one.find(arguments_begin);
    if (at == one.npos) return {};
    std::optional<std::string> arguments = arguments_of(one.substr(at + arguments_begin.size()));
    const std::string_view name = stripped(one.substr(0, std::min(one.find("[CALL_ID]"), at)));
    if (!arguments || name.empty()) return {};
    calls.push_back({std::string(name), *std::move(arguments)});
  }
  return calls;
}

std::vector<ToolCall> object_calls(std::string_view text, const Tools& tools) {
  std::vector<ToolCall> calls;
  const auto take = [&](std::string_view one) {
    std::optional<ToolCall> call = call_of_json(one);
    if (!call || function_of(tools, call->name) == nullptr) return false;
    calls.push_back(*std::move(call));
    return true;
  };
  if (take(text)) return calls;
  // Several, which end in "}" before a ";".
  while (!stripped(text).empty()) {
    std::size_t end = text.find("};");
    end = end == text.npos ? text.size() : end + 1;
    if (!take(text.substr(0, end))) return {};
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return calls;
}

}  // namespace topkv::serve
