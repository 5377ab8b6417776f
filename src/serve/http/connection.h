// A client's connection as httplib reads and writes it, with what httplib does not limit: bytes of
// headers, bytes of a request, and how long all of it may take.
#pragma once

#include <httplib.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>

namespace topkv::serve {

/// One thread at a time. Owns the socket.
class Connection : public httplib::Stream {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::size_t most_header_bytes = 32 << 10;
  /// Of the line of the header Range: httplib looks through it with a std::regex, which goes a call
  /// deeper with each byte.
  static constexpr std::size_t most_range_bytes = 256;
  static constexpr auto header_time = std::chrono::seconds(10);
  static constexpr auto body_time = std::chrono::seconds(60);
  /// For a client to take what one call of write has.
  static constexpr auto write_time = std::chrono::seconds(10);

  /// For a client to read its last response, when it still sends; and for one that is refused by
  /// the thread that others wait for.
  static constexpr auto linger_time = std::chrono::milliseconds(2000);
  static constexpr auto refused_linger_time = std::chrono::milliseconds(100);

  /// ends: from when on nothing more is waited for; outlives it.
  Connection(int socket, const std::atomic<bool>& ends,
             std::chrono::milliseconds linger = linger_time);
  ~Connection() override;
  Connection(const Connection&) = delete;  // owns the socket
  Connection& operator=(const Connection&) = delete;

  /// A request begins: its times and bytes count from here. most: bytes of a body.
  void begin(std::size_t most_body_bytes);
  /// Whether there is something to read, or the end, within that time.
  bool waits_for(std::chrono::milliseconds time) const;
  /// Whether the client has closed it, at least its side.
  bool gone() const;

  bool is_readable() const override { return true; }  // read waits
  bool is_writable() const override { return !gone(); }
  /// -1 at a limit, and where the client is gone; 0 at the end.
  ssize_t read(char* bytes, std::size_t size) override;
  ssize_t write(const char* bytes, std::size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  bool fill();
  void count(const char* bytes, std::size_t size);

  int socket_;
  const std::atomic<bool>& ends_;
  std::chrono::milliseconds linger_;
  std::array<char, 16 << 10> held_;
  std::size_t begin_ = 0, end_ = 0;  // of held_: bytes that were not taken
  Clock::time_point until_;
  std::size_t left_ = 0;  // bytes that may come of this part
  std::size_t body_bytes_ = 0;
  bool in_headers_ = true;
  std::size_t line_ = 0;  // bytes of the header line so far
  bool first_line_ = true;
  bool is_range_ = false;  // the line so far is a beginning of "Range:", or has it
  char last_ = 0;
};

}  // namespace topkv::serve
