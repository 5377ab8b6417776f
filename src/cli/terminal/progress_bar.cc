#include "src/cli/terminal/progress_bar.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/cli/terminal/interrupt.h"
#include "src/cli/terminal/terminal.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"

namespace topkv::cli {

std::string progress_text(const std::string& title, const Progress& progress, double seconds,
                          std::optional<double> left, std::size_t width) {
  const double done = static_cast<double>(progress.done);
  const double total = static_cast<double>(progress.total);
  const double rate = seconds > 0 ? done / seconds : 0;
  const bool bytes = progress.unit == "bytes";
  const std::string counts =
      bytes ? fmt::format("  {}/{}", byte_text(progress.done), byte_text(progress.total))
            : fmt::format("  {}/{} {}", format_grouped(progress.done),
                          format_grouped(progress.total), progress.unit);
  const std::string percent = total > 0 ? fmt::format("  {:.0f} %", 100 * done / total) : "";
  std::string speed;
  std::string time;
  if (rate > 0 && seconds > 0.05) {
    speed = bytes ? fmt::format("  {}/s", byte_text(static_cast<std::int64_t>(rate)))
                  : fmt::format("  {} {}/s", format_rate(rate), progress.unit);
    if (progress.done >= progress.total) {
      time = fmt::format("  in {}", format_seconds(seconds));
    } else if (left) {
      time = fmt::format("  {} left", format_seconds(*left));
    }
  }
  // The first chunk of a text takes minutes on a small CPU: something moves until it is read.
  if (progress.done == 0 && progress.total > 0 && seconds >= 1)
    time = fmt::format("  {} so far", format_seconds(seconds));
  for (const std::string& text :
       {title + counts + percent + speed + time, title + percent + time, title + percent}) {
    if (width_of(text) <= width) return text;
  }
  const std::size_t rest = width_of(percent);
  if (width <= rest) return one_line(percent, width);
  return one_line(title, width - rest) + percent;
}

ProgressFn ProgressBar::callback(std::string title, Cost cost) {
  idle_since_ = now_();
  return [this, title = std::move(title), cost](const Progress& progress) {
    show(title, progress, {}, cost);
    stop_if_interrupted();
  };
}

ProgressFn ProgressBar::index_callback(std::string index, std::string tail) {
  return [on_index = callback(std::move(index)),
          on_tail = callback(std::move(tail))](const Progress& progress) {
    (progress.stage == "tail" ? on_tail : on_index)(progress);
  };
}

ProgressFn ProgressBar::brief_callback(std::string title) {
  idle_since_ = now_();
  return [this, title = std::move(title),
          quiet_until = idle_since_ + std::chrono::seconds(1)](const Progress& progress) {
    show(title, progress, quiet_until);
    stop_if_interrupted();
  };
}

void ProgressBar::report(const std::string& title, const Progress& progress) {
  show(title, progress, {});
}

void ProgressBar::show(const std::string& title, const Progress& progress,
                       Clock::time_point quiet_until, Cost cost) {
  using namespace std::chrono_literals;
  if (hushed_) return;
  const auto now = now_();
  const std::string stage = fmt::format("{}\n{}", title, progress.stage);
  const bool first = stage != stage_;
  const bool last = progress.done >= progress.total;
  if (first) {
    finish();
    stage_ = stage;
    started_ = progress.done == 0 ? now : idle_since_;
    shown_ = {};
    pace_ = {};
  }
  const double since = std::chrono::duration<double>(now - started_).count();
  pace_.add(progress.done, since);
  left_ = progress.unit == "tokens" && cost == Cost::grows
              ? pace_.seconds_left(progress.total)
              : pace_.steady_seconds_left(progress.total);
  if (left_) left_ = std::max(0.0, *left_ - (since - pace_.seconds()));
  const auto pause = terminal_ ? Clock::duration(100ms) : Clock::duration(10s);
  if (now >= quiet_until && (last || now - shown_ >= pause)) {
    shown_ = now;
    write(title, progress, pace_.done() > 0 ? pace_.seconds() : since);
  }
  if (!last) return;
  finish();
  stage_.clear();
  idle_since_ = now;
  left_.reset();
}

void ProgressBar::write(const std::string& title, const Progress& progress, double seconds) {
  if (terminal_) {
    // Its last column stays free: a line that fills it would scroll on some terminals.
    rewrite(progress_text(title, progress, seconds, left_, line_width(out_) - 1));
  } else {
    fmt::print(out_, "{}\n", progress_text(title, progress, seconds, left_));
  }
}

// Over the open line, blanks over what is left of that: no escape sequences.
void ProgressBar::rewrite(const std::string& text) {
  const std::size_t wide = width_of(text);
  std::size_t blanks = line_open_ && line_width_ > wide ? line_width_ - wide : 0;
  blanks = std::min(blanks, std::max(line_width(out_), wide + 1) - 1 - wide);
  fmt::print(out_, "\r{}{}", text, std::string(blanks, ' '));
  if (blanks > 0) fmt::print(out_, "\r{}", text);  // the cursor behind the text
  line_open_ = true;
  line_width_ = wide;
  std::fflush(out_);
}

void ProgressBar::note(const std::string& line) {
  if (line_open_) rewrite("");
  if (line_open_) fmt::print(out_, "\r");
  line_open_ = false;
  fmt::print(out_, "{}\n", line);
  std::fflush(out_);
}

void ProgressBar::finish() {
  if (line_open_) fmt::print(out_, "\n");
  line_open_ = false;
  std::fflush(out_);
}

ProgressBar stderr_progress() { return {stderr, rewrites_lines(stderr)}; }

}  // namespace topkv::cli
