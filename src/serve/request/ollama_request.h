// Bodies of requests in Ollama's form, read into the requests that the other API makes. Pure
// functions; they throw Problem (400), which names the field.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "src/serve/request/request.h"

namespace topkv::serve {

/// POST /api/generate or /api/chat.
struct OllamaRequest {
  AnswerRequest answer;
  /// There is nothing to answer: clients send this to load a model before they ask.
  bool loads = false;
};

/// Returns whether a request without messages, of which model and context are set, is answered in
/// the chat template. It may throw Problem.
using InTemplateFn = std::function<bool(const AnswerRequest& request)>;

/// Reads a prompt: a chat of one message where the model has a template, else a text to continue.
/// in_template: called once, unless the request is "raw".
OllamaRequest parse_ollama_generate(std::string_view body, const InTemplateFn& in_template);
OllamaRequest parse_ollama_chat(std::string_view body);

/// POST /api/show. Returns the name of the model.
std::string parse_ollama_show(std::string_view body);

}  // namespace topkv::serve
