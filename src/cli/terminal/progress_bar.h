// Shows on stderr how far long work is: one line that updates itself on a terminal, never wider
// than that is, or plain lines (the first, then at most one every ten seconds, and the last)
// elsewhere: terminal.h tells which.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

#include "src/cli/terminal/eta.h"
#include "topkv/progress.h"

namespace topkv::cli {

/// The text of one report, without what starts or ends a line:
/// "prefill  131072/1048576 tokens  12 %  3,210 tokens/s  4 min 45 s left".
/// seconds: from the stage's beginning until so much was done; left: to its end, where that is
/// known. Where that is wider than `width` characters, counts and rate are left out, then the time
/// left; at last the title is cut.
std::string progress_text(const std::string& title, const Progress& progress, double seconds,
                          std::optional<double> left, std::size_t width = 1000);

/// What the next unit of work takes beside those before it.
enum class Cost : std::uint8_t {
  grows,   ///< maybe more, if it is a token: it may attend all before it (pace.h)
  steady,  ///< as much
};

/// One thread at a time. Ends its line when destroyed.
class ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;

  /// out is borrowed. terminal: update one line in place. now: what tells the time.
  ProgressBar(std::FILE* out, bool terminal, std::function<Clock::time_point()> now = Clock::now)
      : out_(out), terminal_(terminal), now_(std::move(now)), idle_since_(now_()) {}
  ~ProgressBar() { finish(); }
  ProgressBar(const ProgressBar&) = delete;  // it owns the line it is writing
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// A callback that reports under this title and throws Interrupted after Ctrl-C. Valid while the
  /// bar lives.
  ProgressFn callback(std::string title, Cost cost = Cost::grows);
  /// A callback for Context::ready_for. It reports under `index` while the index is built, and
  /// under `tail` while the tail is.
  ProgressFn index_callback(std::string index, std::string tail = "tail");
  /// The same for work that is brief as a rule, as a prompt: shows nothing in the first second.
  ProgressFn brief_callback(std::string title);

  void report(const std::string& title, const Progress& progress);
  /// Until the end of the stage, as shown; empty: not known, or none is under way.
  std::optional<double> seconds_left() const { return left_; }
  /// Shows no progress from here on; notes, and what ends work, stay.
  void hush() { hushed_ = true; }
  /// Writes a line of its own, above the updating one.
  void note(const std::string& line);
  /// Ends the updating line, if there is one.
  void finish();

 private:
  void show(const std::string& title, const Progress& progress, Clock::time_point quiet_until,
            Cost cost = Cost::grows);
  void write(const std::string& title, const Progress& progress, double seconds);
  void rewrite(const std::string& text);

  std::FILE* out_;
  bool terminal_;
  bool hushed_ = false;
  std::function<Clock::time_point()> now_;
  bool line_open_ = false;
  std::size_t line_width_ = 0;  // characters of the open line
  std::string stage_;
  Clock::time_point idle_since_;  // when work could begin that first reports when some is done
  Clock::time_point started_;
  Clock::time_point shown_;
  Pace pace_;
  std::optional<double> left_;
};

/// A bar on stderr.
ProgressBar stderr_progress();

}  // namespace topkv::cli
