#include "src/eval/report/eval_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"
#include "src/eval/report/chart_writer.h"

namespace topkv {
namespace {

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
class ScoreChart {
 public:
  explicit ScoreChart(const ScoreTable& table) {
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

  int height() const {
    return legend_top() + chart::legend_line * static_cast<int>(methods_.size()) + chart::margin;
  }
  int least_width() const {
    const int more = across_.size() > 1 ? 240 : 0;
    return left + chart::least_plot_width + more + chart::right;
  }

  /// up: the title of the scores' axis.
  void draw(ChartWriter& writer, int width, const std::string& up) const {
    const auto panels = static_cast<int>(across_.size());
    PlotArea area{.y = chart::first_panel,
                  .width = (width - left - chart::right - between * (panels - 1)) / panels,
                  .height = plot_height};
    for (const Length& length : lengths_) {
      area.x = left;
      const std::vector<Tick> scores = score_ticks(area);
      writer.panel_title(area, fmt::format("{}, length {}", up, format_count(length.length)));
      writer.tick_labels(area, scores);
      for (const Across& across : across_) {
        writer.axes(area, scores, ticks_of(across, area), across.title);
        for (std::size_t s = 0; s < length.series.size(); ++s) {
          draw_series(writer, across, s, length.series[s], area);
        }
        area.x += area.width + between;
      }
      area.y += panel_step;
    }
    int y = legend_top();
    for (std::size_t s = 0; s < methods_.size(); ++s, y += chart::legend_line) {
      const bool known = std::ranges::find(no_bytes_, methods_[s]) == no_bytes_.end();
      writer.legend_entry(s, left, y, methods_[s] + (known ? "" : " (bytes read: unknown)"));
    }
  }

 private:
  static constexpr int left = 64;
  static constexpr int between = 36;  // of two panels beside each other
  static constexpr int plot_height = 220;
  static constexpr int panel_step = plot_height + chart::below_plot;

  int legend_top() const {
    return chart::first_panel + panel_step * static_cast<int>(lengths_.size()) - 22;
  }
  double y_of(double value, const PlotArea& area) const {
    return area.y + area.height * (1 - value / top_);
  }

  std::vector<Tick> score_ticks(const PlotArea& area) const {
    std::vector<Tick> ticks;
    for (int tick = 0; tick <= 5; ++tick) {
      const double value = top_ * tick / 5;
      ticks.push_back({y_of(value, area), fmt::format("{:g}", value)});
    }
    return ticks;
  }

  static std::vector<Tick> ticks_of(const Across& across, const PlotArea& area) {
    std::vector<Tick> ticks;
    for (const double value : across.axis.ticks) {
      ticks.push_back({area.across(across.axis, value), across.text(value)});
    }
    return ticks;
  }

  void draw_series(ChartWriter& writer, const Across& across, std::size_t s,
                   const std::vector<Point>& points, const PlotArea& area) const {
    ChartWriter marks;
    std::string path;
    for (const Point& point : points) {
      const double y = y_of(point.value, area);
      const std::optional<double> value = across.of(point);
      if (!point.budget) {
        path += fmt::format("M{} {:.1f}h{}", area.x, y, area.width);
        marks.mark(s, value ? area.across(across.axis, *value) : area.x + area.width, y,
                   fmt::format("{}, {}: {:.1f}", methods_[s],
                               value ? across.text(*value) : "all rows", point.value));
        continue;
      }
      if (!value) continue;
      const double x = area.across(across.axis, *value);
      add_point(path, x, y);
      marks.mark(s, x, y,
                 fmt::format("{}, budget {}, {}: {:.1f}", methods_[s], *point.budget,
                             across.text(*value), point.value));
    }
    if (path.empty()) return;
    writer.begin_series(s);
    writer.path("line", path);
    writer.add(marks);
    writer.end_series();
  }

  std::vector<std::string> methods_;
  std::vector<std::string> no_bytes_;  ///< methods with points that have none
  std::vector<Length> lengths_;
  std::vector<Across> across_;
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
  const ScoreChart scores(table);
  const int text_width = chart::margin + std::max(svg_text_width(title), svg_text_width(subtitle));
  const int width = std::max(scores.least_width(), text_width);
  const bool characters = table.columns.size() == 1 && counts_characters(table.columns.front());
  const std::string up = characters                  ? "Characters repeated"
                         : table.columns.size() == 1 ? "Score in percent"
                                                     : "Score in percent, mean over tasks";
  ChartWriter writer;
  scores.draw(writer, width, up);
  return writer.document(width, scores.height(), title, subtitle, series_style);
}

}  // namespace topkv
