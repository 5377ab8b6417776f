#include "src/serve/http/http_server.h"

#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "src/serve/request/problem.h"
#include "topkv/error.h"

namespace topkv::serve {
namespace {

constexpr auto idle_time = std::chrono::seconds(5);
constexpr int most_requests = 1000;  // on one connection

thread_local const Connection* current = nullptr;
thread_local bool closes = false;   // current, with its response
thread_local bool refuses = false;  // what comes on this thread now

/// Threads for so many connections; those beyond are refused by the thread that accepted them.
class Connections : public httplib::TaskQueue {
 public:
  explicit Connections(std::size_t most) {
    try {
      for (std::size_t i = 0; i < most; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::exception& error) {
      shutdown();
      throw Error(
          fmt::format("{} of {} threads for connections could be started: {}; raise the "
                      "limit of threads (ulimit -u, a container's pids), or give a smaller "
                      "--max-queue or --max-batch",
                      threads_.size(), most, error.what()));
    }
  }

  void enqueue(std::function<void()> connection) override {
    {
      const std::lock_guard lock(mutex_);
      if (taken_ < threads_.size()) {
        ++taken_;
        waiting_.push_back(std::move(connection));
        connection = nullptr;
      }
    }
    if (!connection) return arrived_.notify_one();
    refuses = true;
    connection();
    refuses = false;
  }

  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    arrived_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      arrived_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const std::function<void()> connection = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      try {
        connection();
      } catch (const std::exception&) {
        // Out of memory, outside of what answers: the connection is closed.
      }
      lock.lock();
      --taken_;
    }
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> waiting_;
  std::size_t taken_ = 0;  // waiting, and with a thread
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

void refuse(Connection& connection) {
  const std::string body =
      error_body({503, "too many connections; try again later", {}, "too_many_connections"});
  const std::string response =
      "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
      "Connection: close\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  connection.write(response.data(), response.size());
}

}  // namespace

HttpServer::HttpServer(std::size_t most_connections, std::size_t most_body_bytes)
    : most_body_bytes_(most_body_bytes) {
  new_task_queue = [most_connections] { return new Connections(most_connections); };
  set_payload_max_length(most_body_bytes);
  set_tcp_nodelay(true);
  // httplib's own would share the port with another server of this user, each taking some requests.
  set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
}

const Connection& HttpServer::connection() { return *current; }

void HttpServer::close_after_response() { closes = true; }

void HttpServer::wait_for_responses() const {
  const auto until = Connection::Clock::now() + Connection::write_time;
  while (open_ > 0 && Connection::Clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  Connection connection(socket, ends_,
                        refuses ? Connection::refused_linger_time : Connection::linger_time);
  if (refuses) {
    refuse(connection);
    return false;
  }
  current = &connection;
  closes = false;
  ++open_;
  const std::shared_ptr<void> counted(nullptr, [this](void*) { --open_; });
  for (int requests = 1; requests <= most_requests; ++requests) {
    const auto until = Connection::Clock::now() + idle_time;
    bool waits = false;
    while (!waits && !closing_ && Connection::Clock::now() < until)
      waits = connection.waits_for(std::chrono::milliseconds(100));
    if (!waits && !connection.waits_for(std::chrono::milliseconds(0))) break;
    connection.begin(most_body_bytes_);
    bool closed = false;
    const bool last = closing_ || requests == most_requests;
    // Answers are sent whole: a part of one, which httplib would cut out, is no JSON.
    const auto whole = [](httplib::Request& request) { request.ranges.clear(); };
    if (!process_request(connection, last, closed, whole) || closed || closes || last) break;
  }
  current = nullptr;
  return true;
}

}  // namespace topkv::serve
