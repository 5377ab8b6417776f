#include "src/eval/report/eval_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"
#include "src/eval/report/chart_layout.h"
#include "src/eval/report/log_axis.h"
#include "src/eval/report/series_marks.h"
#include "src/eval/report/svg.h"

namespace topkv {
namespace {

using chart::first_panel;
using chart::inset;
using chart::legend_line;
using chart::margin;
using chart::right;

constexpr int left = 64;
constexpr int between = 36;  // of two panels beside each other
constexpr int plot_height = 220;
constexpr int panel_step = plot_height + chart::below_plot;

struct Point {
  std::optional<std::int64_t> budget;
  double value = 0;
  double rows = 0;  ///< beyond the smallest window
  std::optional<double> bytes = {};
};

struct Length {
  std::int64_t length = 0;
  std::vector<std::vector<Point>> series;  ///< of each method
};

/// A quantity that scores are drawn against.
struct Across {
  LogAxis axis;
  std::string title;
  std::optional<double> (*of)(const Point&);
  std::string (*text)(double);
};

template <class T>
std::size_t place_of(std::vector<T>& list, const T& item) {
  const auto at = std::ranges::find(list, item);
  if (at == list.end()) {
    list.push_back(item);
    return list.size() - 1;
  }
  return static_cast<std::size_t>(at - list.begin());
}

/// All that a picture shows, and its axes.
class Chart {
 public:
  explicit Chart(const ScoreTable& table) {
    // A wider window is rows that are attended, too: how much wider than the smallest.
    double window = std::numeric_limits<double>::infinity();
    for (const ScoreRow& row : table.rows) {
      if (row.budget && charted(table, row)) window = std::min(window, row.window_rows);
    }
    std::vector<double> rows;
    std::vector<double> bytes;
    bool bytes_of_budgets = false;
    for (const ScoreRow& row : table.rows) {
      const std::optional<double> value = charted(table, row);
      if (!value) continue;
      const std::size_t method = place_of(methods_, row.method);
      auto length = std::ranges::find(lengths_, row.length, &Length::length);
      if (length == lengths_.end()) length = lengths_.insert(lengths_.end(), {row.length, {}});
      length->series.resize(std::max(length->series.size(), method + 1));
      Point point{row.budget, *value};
      if (row.budget) {
        // An axis of logarithms has no zero.
        point.rows = std::max(1.0, row.rows_per_head + row.window_rows - window);
        rows.push_back(point.rows);
      }
      if (row.bytes_read && *row.bytes_read > 0) {
        point.bytes = row.bytes_read;
        bytes.push_back(*point.bytes);
        bytes_of_budgets = bytes_of_budgets || row.budget;
      } else if (row.budget) {
        no_bytes_.push_back(row.method);
      }
      length->series[method].push_back(point);
      highest_ = std::max(highest_, *value);
    }
    std::string title = "rows of a query head";
    if (rows.empty()) {
      rows = {64};  // lines across need none
    } else {
      title += fmt::format(" beyond {:.0f} of sinks and window", window);
    }
    across_.push_back(
        {binary_axis(rows), title,
         [](const Point& point) { return point.budget ? std::optional(point.rows) : std::nullopt; },
         [](double value) { return fmt::format("{:g}", value); }});
    if (bytes_of_budgets) {
      across_.push_back({binary_axis(bytes), "bytes read per token",
                         [](const Point& point) { return point.bytes; },
                         [](double value) { return byte_text(static_cast<std::int64_t>(value)); }});
    }
    // Percent, or characters, which may be more.
    while (highest_ > top_) top_ += 100;
  }

  int legend_top() const {
    return first_panel + panel_step * static_cast<int>(lengths_.size()) - 22;
  }
  int height() const {
    return legend_top() + legend_line * static_cast<int>(methods_.size()) + margin;
  }
  int least_width() const {
    const int more = across_.size() > 1 ? 240 : 0;
    return left + chart::least_plot_width + more + right;
  }

  std::string svg(int width, const std::string& up) {
    const auto panels = static_cast<int>(across_.size());
    plot_width_ = (width - left - right - between * (panels - 1)) / panels;
    std::string text;
    int top = first_panel;
    for (const Length& length : lengths_) {
      text +=
          fmt::format("<text class='ink' x='{}' y='{}' font-weight='600'>{}, length {}</text>\n",
                      left, top - 12, svg_escaped(up), format_count(length.length));
      text += up_ticks(top);
      int x = left;
      for (const Across& across : across_) {
        text += frame(across, x, top);
        for (std::size_t s = 0; s < length.series.size(); ++s) {
          text += series_svg(across, s, length.series[s], x, top);
        }
        x += plot_width_ + between;
      }
      top += panel_step;
    }
    return text + legend();
  }

 private:
  double x_of(const Across& across, double value, int x) const {
    return x + inset + across.axis.at(value) * (plot_width_ - 2 * inset);
  }
  double y_of(double value, int top) const { return top + plot_height * (1 - value / top_); }

  std::string up_ticks(int top) const {
    std::string text;
    for (int tick = 0; tick <= 5; ++tick) {
      const double value = top_ * tick / 5;
      text += fmt::format("<text class='ink' x='{}' y='{:.1f}' text-anchor='end'>{:g}</text>\n",
                          left - 8, y_of(value, top) + 4, value);
    }
    return text;
  }

  std::string frame(const Across& across, int x, int top) const {
    std::string text;
    for (int tick = 0; tick <= 5; ++tick) {
      text += fmt::format("<path class='grid' d='M{} {:.1f}h{}'/>\n", x, y_of(top_ * tick / 5, top),
                          plot_width_);
    }
    double free_from = x - margin;  // of the labels that are there
    for (const double tick : across.axis.ticks) {
      const double at = x_of(across, tick, x);
      const std::string label = across.text(tick);
      text += fmt::format("<path class='grid' d='M{:.1f} {}v{}'/>\n", at, top, plot_height);
      const double half = svg_text_width(label) / 2.0;
      if (at - half < free_from) continue;
      free_from = at + half + 4;
      text += fmt::format("<text class='ink' x='{:.1f}' y='{}' text-anchor='middle'>{}</text>\n",
                          at, top + plot_height + 18, label);
    }
    text += fmt::format("<rect class='frame' x='{}' y='{}' width='{}' height='{}'/>\n", x, top,
                        plot_width_, plot_height);
    return text + fmt::format("<text class='faint' x='{}' y='{}' text-anchor='middle'>{}</text>\n",
                              x + plot_width_ / 2, top + plot_height + 38, across.title);
  }

  std::string series_svg(const Across& across, std::size_t s, const std::vector<Point>& points,
                         int x, int top) const {
    std::string marks;
    std::string path;
    for (const Point& point : points) {
      const double y = y_of(point.value, top);
      const std::optional<double> value = across.of(point);
      if (!point.budget) {
        path += fmt::format("M{} {:.1f}h{}", x, y, plot_width_);
        marks += mark_svg(s, value ? x_of(across, *value, x) : x + plot_width_, y,
                          fmt::format("{}, {}: {:.1f}", methods_[s],
                                      value ? across.text(*value) : "all rows", point.value));
        continue;
      }
      if (!value) continue;
      const double at = x_of(across, *value, x);
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", at, y);
      marks += mark_svg(s, at, y,
                        fmt::format("{}, budget {}, {}: {:.1f}", methods_[s], *point.budget,
                                    across.text(*value), point.value));
    }
    if (path.empty()) return {};
    return fmt::format("<g class='s{}'>\n<path class='line' d='{}'/>\n{}</g>\n", s % series_colours,
                       path, marks);
  }

  std::string legend() const {
    std::string text;
    int y = legend_top();
    for (std::size_t s = 0; s < methods_.size(); ++s, y += legend_line) {
      text += fmt::format("<g class='s{}'>\n<path class='line' d='M{} {}h32'/>\n",
                          s % series_colours, left, y);
      text += mark_svg(s, left + 16, y, "") + "</g>\n";
      const bool known = std::ranges::find(no_bytes_, methods_[s]) == no_bytes_.end();
      text += fmt::format("<text class='ink' x='{}' y='{}'>{}{}</text>\n", left + 42, y + 4,
                          svg_escaped(methods_[s]), known ? "" : " (what it reads is not known)");
    }
    return text;
  }

  std::vector<std::string> methods_;
  std::vector<std::string> no_bytes_;  ///< methods with points that have none
  std::vector<Length> lengths_;
  std::vector<Across> across_;
  int plot_width_ = 0;
  double highest_ = 0;
  double top_ = 100;
};

}  // namespace

std::optional<double> charted(const ScoreTable& table, const ScoreRow& row) {
  if (row.average || table.columns.size() != 1 || !row.scores.front()) return row.average;
  return row.scores.front()->mean;
}

std::string eval_svg(const ScoreTable& table, const std::string& title,
                     const std::string& subtitle) {
  Chart chart(table);
  const int text_width = margin + std::max(svg_text_width(title), svg_text_width(subtitle));
  const int width = std::max(chart.least_width(), text_width);
  const bool characters = table.columns.size() == 1 && counts_characters(table.columns.front());
  const std::string up = characters                  ? "Characters repeated"
                         : table.columns.size() == 1 ? "Score in percent"
                                                     : "Score in percent, mean over tasks";
  return svg_head(width, chart.height(), title, subtitle, series_style) + chart.svg(width, up) +
         "</svg>\n";
}

}  // namespace topkv
