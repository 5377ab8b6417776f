// What is refused of a request before its body is read: paths, framing, keys, hosts, types.
#pragma once

#include <httplib.h>

#include <string>

#include "src/serve/http/server.h"
#include "src/serve/request/problem.h"

namespace topkv::serve {

inline constexpr const char* json_type = "application/json";
/// What paths of Ollama's API begin with.
inline constexpr const char* ollama_api = "/api/";

/// A path's name in metrics, which have few.
std::string label_of(const std::string& path);

/// Throws Problem for a request that is not to be answered.
void check_request(const httplib::Request& request, const ServerOptions& options);

/// The problem of a request that no route took.
Problem unanswered(const httplib::Request& request, int status);

}  // namespace topkv::serve
