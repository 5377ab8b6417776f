#include "src/serve/http/connection.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace topkv::serve {
namespace {

using Clock = Connection::Clock;

/// What happened of `events` until then; 0: nothing.
short wait_until(int socket, short events, Clock::time_point until) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd wanted = {.fd = socket, .events = events, .revents = 0};
    const int got = ::poll(&wanted, 1, static_cast<int>(std::clamp<long long>(left, 0, 1 << 20)));
    if (got < 0 && errno == EINTR) continue;
    if (got > 0) return wanted.revents;
    if (got < 0 || left <= 0) return 0;
  }
}

using NameOf = int (*)(int, sockaddr*, socklen_t*);

void name(int socket, NameOf name_of, std::string& ip, int& port) {
  sockaddr_storage address = {};
  socklen_t length = sizeof address;
  std::array<char, NI_MAXHOST> host = {};
  std::array<char, NI_MAXSERV> service = {};
  if (name_of(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host.data(), host.size(),
                    service.data(), service.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return;
  ip = host.data();
  port = std::atoi(service.data());
}

}  // namespace

Connection::Connection(int socket, const std::atomic<bool>& ends, std::chrono::milliseconds linger)
    : socket_(socket), ends_(ends), linger_(linger) {}

Connection::~Connection() {
  // Closing with bytes unread would take from the client what it was told: they are read for a
  // moment.
  ::shutdown(socket_, SHUT_WR);
  const Clock::time_point until = Clock::now() + linger_;
  while (Clock::now() < until && wait_until(socket_, POLLIN, until) != 0 &&
         ::recv(socket_, held_.data(), held_.size(), 0) > 0) {
  }
  ::close(socket_);
}

void Connection::begin(std::size_t most_body_bytes) {
  until_ = Clock::now() + header_time;
  left_ = most_header_bytes;
  body_bytes_ = most_body_bytes;
  in_headers_ = first_line_ = true;
  line_ = 0;
  last_ = 0;
}

bool Connection::waits_for(std::chrono::milliseconds time) const {
  return begin_ < end_ || wait_until(socket_, POLLIN, Clock::now() + time) != 0;
}

bool Connection::gone() const {
  return (wait_until(socket_, POLLRDHUP, Clock::now()) & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool Connection::fill() {
  constexpr auto moment = std::chrono::milliseconds(100);
  while (wait_until(socket_, POLLIN, std::min(until_, Clock::now() + moment)) == 0)
    if (ends_ || Clock::now() >= until_) return false;
  ssize_t got = -1;
  do {
    got = ::recv(socket_, held_.data(), held_.size(), 0);
  } while (got < 0 && errno == EINTR);
  begin_ = 0;
  end_ = got > 0 ? static_cast<std::size_t>(got) : 0;
  return got >= 0;
}

ssize_t Connection::read(char* bytes, std::size_t size) {
  if (begin_ == end_ && !fill()) return -1;
  if (begin_ == end_) return 0;
  const std::size_t some = std::min({size, end_ - begin_, left_});
  if (some == 0 || Clock::now() > until_) return -1;
  std::memcpy(bytes, held_.data() + begin_, some);
  begin_ += some;
  left_ -= some;
  count(bytes, some);
  return static_cast<ssize_t>(some);
}

// httplib takes headers byte by byte: none of a body is among them.
void Connection::count(const char* bytes, std::size_t size) {
  constexpr std::string_view range = "range:";
  for (std::size_t i = 0; in_headers_ && i < size; ++i) {
    if (line_ == 0) is_range_ = !first_line_;
    if (line_ < range.size())
      is_range_ = is_range_ && std::tolower(static_cast<unsigned char>(bytes[i])) == range[line_];
    ++line_;
    if (is_range_ && line_ > most_range_bytes) left_ = 0;
    if (bytes[i] == '\n') {
      if (!first_line_ && line_ == 2 && last_ == '\r') {
        in_headers_ = false;
        left_ = body_bytes_;
        until_ = Clock::now() + body_time;
      }
      first_line_ = false;
      line_ = 0;
    }
    last_ = bytes[i];
  }
}

ssize_t Connection::write(const char* bytes, std::size_t size) {
  const Clock::time_point until = Clock::now() + write_time;
  std::size_t sent = 0;
  while (sent < size) {
    if ((wait_until(socket_, POLLOUT, until) & POLLOUT) == 0) return -1;
    const ssize_t some = ::send(socket_, bytes + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (some < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (some <= 0) return -1;
    sent += static_cast<std::size_t>(some);
  }
  return static_cast<ssize_t>(sent);
}

void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  name(socket_, ::getpeername, ip, port);
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  name(socket_, ::getsockname, ip, port);
}

}  // namespace topkv::serve
