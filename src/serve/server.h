// The service over HTTP.
#pragma once

#include <functional>
#include <string>

#include "src/serve/service.h"

namespace topkv::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;      ///< 0: any that is free
  std::string api_key;  ///< empty: nobody is asked for one
};

/// Throws Unsupported, with what to do, when this topkv was built without an HTTP server.
void require_http();

/// Serves until stop() is true; then no request is taken, and those that are answered have ten
/// seconds. ready is told the port when requests are taken. Returns whether all were answered to
/// their ends. Throws Error where the port cannot be had, and what require_http does.
bool serve(Service& service, const ServerOptions& options, const std::function<bool()>& stop,
           const std::function<void(int port)>& ready);

}  // namespace topkv::serve
