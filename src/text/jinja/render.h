// Templates of Jinja from files that nobody vouches for, rendered within limits, as transformers'
// apply_chat_template does (jinja2's immutable sandbox, trim_blocks, lstrip_blocks).
//
// The engine is not topkv's (cmake/Jinja.cmake). It has no limits of its own, and its evaluation is
// Python's only nearly. So what it parses is gone through once: nodes that make values, call or
// repeat are replaced by nodes that count (limits.h), and mean what they mean in jinja2 or fail.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace topkv {

/// Where templates are wrong or ask for too much. line: of the template, 0 where none is known.
struct TemplateFailure {
  std::string message;  // may hold any bytes and lines
  std::int64_t line = 0;
  bool refused = false;  ///< the template says so: raise_exception()
};

struct TemplateInput {
  /// The messages of a conversation, objects. Nested no deeper than parse_json takes.
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();  ///< by name, such as tools
  std::map<std::string, std::string> texts;                             ///< bos_token and the like
  bool add_generation_prompt = false;
};

/// Parses the template and throws TemplateFailure where it cannot be.
void check_template(std::string_view source);

/// The text. Throws TemplateFailure; OutOfMemory where there is no stack for it. Works on a thread
/// of its own, whose stack holds what the limits let recurse, and waits for it.
std::string render_template(std::string_view source, const TemplateInput& input);

}  // namespace topkv
