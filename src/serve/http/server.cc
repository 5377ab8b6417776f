#include "src/serve/http/server.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include "src/core/text/printable.h"
#include "src/serve/http/http_server.h"
#include "src/serve/http/routes.h"
#include "src/serve/request/guard.h"
#include "topkv/error.h"

namespace topkv::serve {
namespace {

constexpr auto pause = std::chrono::milliseconds(50);
constexpr auto grace = std::chrono::seconds(10);

/// The thread that takes connections, while it lives.
class Listening {
 public:
  explicit Listening(HttpServer& server)
      : server_(server), thread_([this] {
          try {
            server_.listen_after_bind();
          } catch (const std::exception&) {
            error_ = std::current_exception();
          }
          ended_ = true;
        }) {}
  ~Listening() {
    server_.stop();
    thread_.join();
  }
  Listening(const Listening&) = delete;  // joins once
  Listening& operator=(const Listening&) = delete;

  /// Throws what ended it, if anything.
  bool ended() const {
    if (!ended_) return false;
    if (error_) std::rethrow_exception(error_);
    return true;
  }

 private:
  HttpServer& server_;
  std::exception_ptr error_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

}  // namespace

void require_http() {}

bool serve(Service& service, const ServerOptions& options, const std::function<bool()>& stop,
           const std::function<void(int port)>& ready) {
  const SchedulerLimits& limits = service.options().limits;
  // Each that waits or is answered has one; others come with other requests.
  HttpServer server(static_cast<std::size_t>(limits.queue + 4 * limits.batch + 16),
                    static_cast<std::size_t>(max_context_bytes));
  add_routes(server, service, options);
  int port = options.port;
  if (port == 0)
    port = server.bind_to_any_port(options.host);
  else if (!server.bind_to_port(options.host, port))
    port = -1;
  if (port <= 0)
    throw Error(
        fmt::format("cannot listen at {} port {}: it is in use, or not an address of this machine; "
                    "give another --port or --host",
                    printable(options.host), options.port));
  const Listening listening(server);
  while (!server.is_running() && !listening.ended()) std::this_thread::sleep_for(pause / 10);
  if (!listening.ended()) ready(port);
  while (!stop() && !listening.ended()) std::this_thread::sleep_for(pause);
  if (listening.ended()) throw Error("no more connections can be taken; start the server again");
  service.scheduler().close();
  server.close_idle();
  const auto until = std::chrono::steady_clock::now() + grace;
  while (!service.scheduler().idle() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(pause);
  const bool all = service.scheduler().idle();
  service.scheduler().end_all();
  server.end_reading();
  server.wait_for_responses();
  return all;
}

}  // namespace topkv::serve
