// What the HTTP server answers to each path.
#pragma once

#include <string>

#include "src/serve/http/http_server.h"
#include "src/serve/http/server.h"
#include "src/serve/run/service.h"

namespace topkv::serve {

/// Service and options outlive the server.
void add_routes(HttpServer& server, Service& service, const ServerOptions& options);

/// The page of GET /, in HTML.
extern const std::string page;

}  // namespace topkv::serve
