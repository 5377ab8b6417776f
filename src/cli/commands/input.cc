#include "src/cli/commands/input.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "src/cli/commands/device_report.h"
#include "src/cli/terminal/interrupt.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/io/files.h"
#include "topkv/context_file.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

/// Read here and not by a library, whose buffer nobody can look into.
class StandardInput {
 public:
  std::optional<std::string> line() {
    while (held_.find('\n', looked_at_) == held_.npos) {
      if (!fill()) break;
    }
    if (held_.empty()) return std::nullopt;
    const std::size_t end = held_.find('\n');
    std::string line = held_.substr(0, end);
    held_.erase(0, end == held_.npos ? end : end + 1);
    looked_at_ = 0;
    return line;
  }

  bool line_waits() {
    while (held_.find('\n', looked_at_) == held_.npos) {
      pollfd wanted = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      if (!ended_ && ::poll(&wanted, 1, 0) <= 0) return false;
      if (!fill()) break;
    }
    return true;
  }

 private:
  /// False at the end.
  bool fill() {
    looked_at_ = held_.size();
    if (ended_) return false;
    std::array<char, 1 << 16> buffer;
    ssize_t got = -1;
    do {
      got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0) throw FileError("standard input: cannot be read");
    ended_ = got == 0;
    held_.append(buffer.data(), static_cast<std::size_t>(got));
    return got > 0;
  }

  std::string held_;
  std::size_t looked_at_ = 0;  // no line end before it
  bool ended_ = false;
};

StandardInput& standard_input() {
  static StandardInput input;
  return input;
}

/// Throws FileError for what is no text at all: reading it would take hours for nothing.
void require_text(const std::string& file, std::string_view text) {
  const std::string name = file == "-" ? "standard input" : printable(file);
  if (text.starts_with("%PDF-"))
    throw FileError(name + ": is a PDF; expected text: convert it with pdftotext");
  if (const std::size_t zero = text.find('\0'); zero != text.npos)
    throw FileError(
        fmt::format("{}: is not text: byte 0x00 at position {}; expected UTF-8 (from UTF-16: iconv "
                    "-f utf-16 -t utf-8)",
                    name, zero));
  if (const std::size_t bad = first_not_utf8(text); bad != text.npos)
    print_warning(fmt::format(
        "{}: is not UTF-8: byte 0x{:02x} at position {}; such bytes are read as U+FFFD: "
        "convert it, as with iconv -f latin1 -t utf-8",
        name, static_cast<unsigned char>(text[bad]), bad));
}

}  // namespace

std::string text_of_files(const std::vector<std::string>& files, std::vector<TextFile>* parts) {
  std::string text;
  for (const std::string& file : files) {
    if (file != "-" && is_context_file(file))  // of gigabytes, maybe
      throw FileError(printable(file) +
                      ": is a context; expected a file of text: ask a context with topkv ask");
    const std::string one = file == "-" ? read_stdin() : read_file(file);
    require_text(file, one);
    text += one;
    if (parts != nullptr) parts->push_back({file, std::ssize(one)});
  }
  if (!files.empty() && text.empty()) {
    throw FileError(fmt::format("{}: is empty; expected text", printable(files.front())));
  }
  return text;
}

std::optional<std::string> next_line(bool prompts) {
  const WaitsForPerson waiting;
  stop_if_interrupted();
  if (prompts) fmt::print(stderr, "> ");
  std::optional<std::string> line = standard_input().line();
  if (!line && prompts) fmt::print(stderr, "\n");
  return line;
}

bool line_waits() { return standard_input().line_waits(); }

}  // namespace topkv::cli
