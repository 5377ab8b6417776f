// The routes of Ollama's API.
#pragma once

#include "src/serve/http/http_server.h"
#include "src/serve/http/server.h"
#include "src/serve/run/service.h"

namespace topkv::serve {

/// Service and options outlive the server.
void add_ollama_routes(HttpServer& server, Service& service, const ServerOptions& options);

}  // namespace topkv::serve
