#include "src/cli/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "src/cli/interrupt.h"
#include "src/cli/numbers.h"

namespace topkv::cli {

std::string progress_text(const std::string& title, const Progress& progress, double seconds) {
  const double done = static_cast<double>(progress.done);
  const double total = static_cast<double>(progress.total);
  const double rate = seconds > 0 ? done / seconds : 0;
  std::string text = fmt::format("{}  {}/{} {}", title, format_grouped(progress.done),
                                 format_grouped(progress.total), progress.unit);
  if (total > 0) text += fmt::format("  {:.0f} %", 100 * done / total);
  if (rate > 0 && seconds > 0.05) {
    text += fmt::format("  {} {}/s", format_rate(rate), progress.unit);
    text += progress.done < progress.total
                ? fmt::format("  {} left", format_seconds((total - done) / rate))
                : fmt::format("  in {}", format_seconds(seconds));
  }
  return text;
}

ProgressFn ProgressBar::callback(std::string title) {
  idle_since_ = Clock::now();
  return [this, title = std::move(title)](const Progress& progress) {
    report(title, progress);
    stop_if_interrupted();
  };
}

void ProgressBar::report(const std::string& title, const Progress& progress) {
  using namespace std::chrono_literals;
  const auto now = Clock::now();
  const std::string stage = fmt::format("{}\n{}", title, progress.stage);
  const bool first = stage != stage_;
  const bool last = progress.done >= progress.total;
  if (first) {
    finish();
    stage_ = stage;
    started_ = progress.done == 0 ? now : idle_since_;
  }
  const auto pause = terminal_ ? Clock::duration(100ms) : Clock::duration(10s);
  if (!first && !last && now - shown_ < pause) return;
  shown_ = now;

  const double seconds = std::chrono::duration<double>(now - started_).count();
  const std::string text = progress_text(title, progress, seconds);
  if (terminal_) {
    fmt::print(out_, "\r\x1b[K{}", text);
    line_open_ = true;
    std::fflush(out_);
  } else {
    fmt::print(out_, "{}\n", text);
  }
  if (last) {
    finish();
    stage_.clear();
    idle_since_ = now;
  }
}

void ProgressBar::note(const std::string& line) {
  if (line_open_) fmt::print(out_, "\r\x1b[K");
  line_open_ = false;
  fmt::print(out_, "{}\n", line);
  std::fflush(out_);
}

void ProgressBar::finish() {
  if (line_open_) fmt::print(out_, "\n");
  line_open_ = false;
  std::fflush(out_);
}

ProgressBar stderr_progress() { return {stderr, isatty(STDERR_FILENO) != 0}; }

}  // namespace topkv::cli
