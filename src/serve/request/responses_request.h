// POST /v1/responses, OpenAI's Responses API, read into the request that a chat makes. Pure
// functions; they throw Problem (400), which names the field.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "src/serve/request/request.h"

namespace topkv::serve {

struct ResponsesRequest {
  AnswerRequest answer;
  /// Fields of the request that the response repeats, as an object.
  nlohmann::ordered_json repeated = nlohmann::ordered_json::object();
};

ResponsesRequest parse_responses(std::string_view body);

}  // namespace topkv::serve
