// The service over HTTP.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "src/serve/run/service.h"

namespace topkv::serve {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;           ///< 0: any that is free
  std::string api_key = {};  ///< empty: nobody is asked for one
  /// A stream's status is sent when its answer leaves the queue, or after this time: a problem that
  /// shows before has its own status.
  std::chrono::milliseconds status_wait = std::chrono::seconds(1);
  /// A stream without events gets a comment this often.
  std::chrono::milliseconds comment_every = std::chrono::seconds(5);
};

/// Throws Unsupported, with what to do, when this topkv was built without an HTTP server.
void require_http();

/// Serves until stop() is true; then no request is taken, and those that are answered have ten
/// seconds. ready is told the port when requests are taken. Returns whether all were answered to
/// their ends. Throws Error where the port cannot be had, and what require_http does.
bool serve(Service& service, const ServerOptions& options, const std::function<bool()>& stop,
           const std::function<void(int port)>& ready);

}  // namespace topkv::serve
