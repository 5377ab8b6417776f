#include "src/cli/terminal/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>

namespace topkv::cli {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

bool rewrites_lines(std::FILE* out) {
  const int file = ::fileno(out);  // -1 for a stream in memory
  if (file < 0 || isatty(file) == 0 || !environment("CI").empty()) return false;
  const std::string_view terminal = environment("TERM");
  return !terminal.empty() && terminal != "dumb";
}

bool shows_colour(std::FILE* out) { return rewrites_lines(out) && environment("NO_COLOR").empty(); }

std::size_t line_width(std::FILE* out) {
  constexpr std::size_t usual = 80;
  const int file = ::fileno(out);
  winsize size = {};
  if (file < 0 || ioctl(file, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return usual;
  return size.ws_col;
}

std::size_t page_width(std::FILE* out) {
  const std::string_view asked = environment("COLUMNS");
  std::size_t columns = 0;
  const auto [end, error] = std::from_chars(asked.data(), asked.data() + asked.size(), columns);
  const bool number = error == std::errc() && end == asked.data() + asked.size() && columns > 0;
  return number ? columns : line_width(out);
}

}  // namespace topkv::cli
