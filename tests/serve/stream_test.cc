// A streamed answer over HTTP, as a client on the same machine sees its bytes come.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/serve/http/server.h"
#include "src/serve/run/service.h"
#include "tests/serve/serving.h"
#include "tests/support/temp_directory.h"
#include "topkv/chat_template.h"

namespace topkv::serve {
namespace {

using namespace test;

/// A server in this process, until it goes.
class Served {
 public:
  explicit Served(ServerOptions options, std::int64_t room = 1024,
                  std::optional<ChatTemplate> chat = {})
      : service_(model(), std::move(chat),
                 {.model_name = "needle",
                  .room = room,
                  .limits = {},
                  .reading = {.prefill = {}, .retrieval = retrieval()}}) {
    options.port = 0;
    std::promise<int> port;
    thread_ = std::thread([this, options, &port] {
      serve(
          service_, options, [this] { return ends_.load(); },
          [&port](int at) { port.set_value(at); });
    });
    port_ = port.get_future().get();
  }
  ~Served() {
    ends_ = true;
    thread_.join();
  }
  Served(const Served&) = delete;  // a thread works on it
  Served& operator=(const Served&) = delete;

  Service& service() { return service_; }
  int port() const { return port_; }

 private:
  Service service_;
  std::atomic<bool> ends_ = false;
  int port_ = 0;
  std::thread thread_;
};

/// One request and what comes back.
class Client {
 public:
  Client(int port, const std::string& body,
         const std::string& first_line = "POST /v1/completions HTTP/1.1")
      : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval most = {.tv_sec = 60, .tv_usec = 0};  // of any wait
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    const std::string request = first_line +
                                "\r\nHost: localhost\r\nConnection: close\r\n"
                                "Content-Type: application/json\r\nContent-Length: " +
                                std::to_string(body.size()) + "\r\n\r\n" + body;
    EXPECT_EQ(::send(socket_, request.data(), request.size(), 0), std::ssize(request));
  }
  ~Client() { ::close(socket_); }
  Client(const Client&) = delete;  // owns the socket
  Client& operator=(const Client&) = delete;

  /// All that came so far, once these words are in it or the connection has ended.
  const std::string& until(const std::string& words) {
    char bytes[4096];
    while (received_.find(words) == received_.npos) {
      const ssize_t got = ::recv(socket_, bytes, sizeof bytes, 0);
      if (got <= 0) break;
      received_.append(bytes, static_cast<std::size_t>(got));
    }
    return received_;
  }

 private:
  int socket_;
  std::string received_;
};

/// The scheduler's thread is within a chunk of a prompt while one lives: no answer goes on.
class Standstill {
 public:
  explicit Standstill(Scheduler& scheduler) {
    const auto begins = std::make_shared<std::promise<void>>();
    const std::shared_future<void> ends = ends_.get_future().share();
    Question question = question_of(served("7281934"), 1);
    question.options.progress = [begins, ends, begun = false](const Progress&) mutable {
      if (!std::exchange(begun, true)) begins->set_value();
      ends.wait();
    };
    std::future<void> begun = begins->get_future();
    answer_ = scheduler.ask(std::move(question));
    begun.wait();
  }
  ~Standstill() { ends_.set_value(); }
  Standstill(const Standstill&) = delete;  // ends once
  Standstill& operator=(const Standstill&) = delete;

 private:
  std::promise<void> ends_;
  std::shared_ptr<Answer> answer_;
};

TEST(ServeStream, HeadersAndCommentsComeBeforeTheFirstToken) {
  Served server({.status_wait = 1ms, .comment_every = 10ms});
  std::optional<Standstill> standstill(server.service().scheduler());
  Client client(server.port(), R"({"prompt": "The grass is", "max_tokens": 3, "stream": true})");
  const std::string waiting = ": waiting in the queue\n\n";
  const std::string early = client.until(waiting);
  EXPECT_EQ(early.substr(0, 15), "HTTP/1.1 200 OK") << early;
  EXPECT_NE(early.find("Content-Type: text/event-stream\r\n"), early.npos) << early;
  EXPECT_NE(early.find(waiting), early.npos) << early;
  EXPECT_EQ(early.find("data:"), early.npos) << early;
  standstill.reset();
  const std::string all = client.until("data: [DONE]\n\n");
  EXPECT_NE(all.find("data: {"), all.npos) << all;
  EXPECT_NE(all.find("data: [DONE]\n\n"), all.npos) << all;
}

TEST(ServeStream, AProblemThatShowsAtOnceHasItsOwnStatus) {
  constexpr std::int64_t room = std::int64_t{1} << 40;  // tokens, for which no memory suffices
  Served server({.status_wait = std::chrono::hours(1)}, 2 * room);
  Client client(server.port(), R"({"prompt": "The grass is", "stream": true, "max_tokens": )" +
                                   std::to_string(room) + "}");
  EXPECT_EQ(client.until("out_of_memory").substr(0, 12), "HTTP/1.1 503");
}

TEST(ServeStream, AProblemThatShowsLaterIsAnEvent) {
  Served server({.status_wait = 1ms, .comment_every = 10ms});
  std::optional<Standstill> standstill(server.service().scheduler());
  Client client(server.port(), R"({"prompt": "The grass is", "max_tokens": 3, "stream": true})");
  client.until(": waiting");
  std::thread end([&] { server.service().scheduler().end_all(); });  // at the end of the chunk
  Question refused = question_of(served("7281934"), 1);
  refused.choices = 1000;  // more than the queue takes
  while (problem_of([&] { server.service().scheduler().ask(refused); }).code() != "shutting_down")
    std::this_thread::sleep_for(1ms);
  standstill.reset();
  end.join();
  const std::string all = client.until("\"shutting_down\"}}\n\n");
  EXPECT_EQ(all.substr(0, 15), "HTTP/1.1 200 OK") << all;
  EXPECT_NE(all.find("data: {\"error\":"), all.npos) << all;
  EXPECT_EQ(all.find("[DONE]"), all.npos) << all;
}

TEST(ServeStream, OllamasStreamsHaveObjectsInPlaceOfComments) {
  Served server({.status_wait = 1ms, .comment_every = 10ms});
  std::optional<Standstill> standstill(server.service().scheduler());
  Client client(server.port(),
                R"({"model": "needle", "prompt": "The", "options": {"num_predict": 3}})",
                "POST /api/generate HTTP/1.1");
  const std::string nothing = R"("response":"","done":false})";
  const std::string early = client.until(nothing);
  EXPECT_EQ(early.substr(0, 15), "HTTP/1.1 200 OK") << early;
  EXPECT_NE(early.find("Content-Type: application/x-ndjson\r\n"), early.npos) << early;
  EXPECT_NE(early.find(nothing + "\n"), early.npos) << early;
  standstill.reset();
  const std::string all = client.until(R"("done":true)");
  EXPECT_NE(all.find(R"("done":true,"done_reason":"length")"), all.npos) << all;
  EXPECT_NE(client.until(R"("eval_count":3)").find(R"("eval_count":3)"), all.npos);
}

TEST(ServeStream, AProblemThatShowsLaterIsOllamasLastLine) {
  Served server({.status_wait = 1ms, .comment_every = 10ms});
  std::optional<Standstill> standstill(server.service().scheduler());
  Client client(server.port(), R"({"model": "needle", "prompt": "The grass is"})",
                "POST /api/generate HTTP/1.1");
  client.until(R"("done":false)");
  std::thread end([&] { server.service().scheduler().end_all(); });
  Question refused = question_of(served("7281934"), 1);
  refused.choices = 1000;  // more than the queue takes
  while (problem_of([&] { server.service().scheduler().ask(refused); }).code() != "shutting_down")
    std::this_thread::sleep_for(1ms);
  standstill.reset();
  end.join();
  const std::string all = client.until("the end of the connection");
  EXPECT_EQ(all.find(R"("done":true)"), all.npos) << all;
  EXPECT_NE(all.find("\n{\"error\":\""), all.npos) << all;
}

// The arguments of a call are sent as a whole, and may be long.
TEST(ServeStream, CommentsComeWhileACallOfAToolIsCollected) {
  const TempDirectory work;
  work.write("chat_template.jinja",
             "{# <|python_tag|> #}{% for tool in tools %}{{ tool.function.name }}{% endfor %}"
             "{% for message in messages %}{{ message.content }}{% endfor %}");
  Served server({.comment_every = 5ms}, 1024, ChatTemplate::load(work.path()));
  const std::vector<Token> brace = model().tokenizer().encode("{");
  ASSERT_EQ(brace.size(), 1U);
  const std::string body = R"({"messages": [{"role": "user", "content": "The grass is"}],
    "tools": [{"type": "function", "function": {"name": "weather"}}], "stream": true,
    "max_tokens": 60, "temperature": 0, "logit_bias": {")" +
                           std::to_string(brace[0]) + R"(": 100}})";
  Client client(server.port(), body, "POST /v1/chat/completions HTTP/1.1");
  const std::string all = client.until("data: [DONE]\n\n");
  EXPECT_NE(all.find(": answering\n\n"), all.npos) << all;
  EXPECT_NE(all.find("\"content\":\"{{{{"), all.npos) << "it became no call: " << all;
}

TEST(ServeStream, AClientOfHttp10GetsNoChunks) {
  Served server({});
  Client client(server.port(), R"({"prompt": "The grass is", "max_tokens": 3, "stream": true})",
                "POST /v1/completions HTTP/1.0");
  const std::string all = client.until("the end of the connection");
  EXPECT_EQ(all.find("Transfer-Encoding"), all.npos) << all;
  EXPECT_NE(all.find("\r\n\r\ndata: {"), all.npos) << all;
  EXPECT_TRUE(all.ends_with("data: [DONE]\n\n")) << all;
}

}  // namespace
}  // namespace topkv::serve
