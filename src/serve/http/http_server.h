// httplib's server within limits: so many connections, each within those of Connection; more than
// that are told so and closed.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstddef>

#include "src/serve/http/connection.h"

namespace topkv::serve {

class HttpServer : public httplib::Server {
 public:
  /// most_connections: each takes a thread. most_body_bytes: of any request.
  HttpServer(std::size_t most_connections, std::size_t most_body_bytes);

  /// Connections end when they are idle, or with the next response.
  void close_idle() { closing_ = true; }

  /// What has not come of requests is not waited for.
  void end_reading() { ends_ = true; }

  /// Waits, for some seconds at most, until no connection is open. After close_idle().
  void wait_for_responses() const;

  /// That of the request which this thread handles.
  static const Connection& connection();
  /// It ends with the response.
  static void close_after_response();

 private:
  bool process_and_close_socket(socket_t socket) override;

  std::size_t most_body_bytes_;
  std::atomic<bool> closing_ = false;
  std::atomic<bool> ends_ = false;
  std::atomic<int> open_ = 0;
};

}  // namespace topkv::serve
