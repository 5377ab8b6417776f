#include "src/eval/eval_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "src/core/figures.h"
#include "src/eval/log_axis.h"
#include "src/eval/series_marks.h"
#include "src/eval/svg.h"

namespace topkv {
namespace {

constexpr int margin = 20;
constexpr int left = 64;
constexpr int right = 48;
constexpr int least_plot_width = 620;
constexpr int plot_height = 220;
constexpr int inset = 16;  // of the ends of the budgets from the frame
constexpr int first_panel = 104;
constexpr int panel_step = plot_height + 98;
constexpr int legend_line = 22;

struct Point {
  std::optional<std::int64_t> budget;
  double value = 0;
};

struct Panel {
  std::int64_t length = 0;
  std::vector<std::vector<Point>> series;  ///< of each method
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
    std::vector<double> budgets;
    for (const ScoreRow& row : table.rows) {
      const std::optional<double> value = charted(table, row);
      if (!value) continue;
      const std::size_t method = place_of(methods_, row.method);
      auto panel = std::ranges::find(panels_, row.length, &Panel::length);
      if (panel == panels_.end()) panel = panels_.insert(panels_.end(), {row.length, {}});
      panel->series.resize(std::max(panel->series.size(), method + 1));
      panel->series[method].push_back({row.budget, *value});
      if (row.budget) budgets.push_back(static_cast<double>(*row.budget));
      highest_ = std::max(highest_, *value);
    }
    if (budgets.empty()) budgets = {64};  // lines across need no budgets
    across_ = binary_axis(budgets);
    // Percent, or characters, which may be more.
    while (highest_ > top_) top_ += 100;
  }

  int legend_top() const {
    return first_panel + panel_step * static_cast<int>(panels_.size()) - 22;
  }
  int height() const {
    return legend_top() + legend_line * static_cast<int>(methods_.size()) + margin;
  }

  std::string svg(int plot_width, const std::string& up) const {
    std::string text;
    int top = first_panel;
    for (const Panel& panel : panels_) {
      text +=
          fmt::format("<text class='ink' x='{}' y='{}' font-weight='600'>{}, length {}</text>\n",
                      left, top - 12, svg_escaped(up), format_count(panel.length));
      text += axes(top, plot_width);
      for (std::size_t s = 0; s < panel.series.size(); ++s) {
        text += series_svg(s, panel.series[s], top, plot_width);
      }
      top += panel_step;
    }
    int y = legend_top();
    for (std::size_t s = 0; s < methods_.size(); ++s, y += legend_line) {
      text += fmt::format("<g class='s{}'>\n<path class='line' d='M{} {}h32'/>\n",
                          s % series_colours, left, y);
      text += mark_svg(s, left + 16, y, "") + "</g>\n";
      text += fmt::format("<text class='ink' x='{}' y='{}'>{}</text>\n", left + 42, y + 4,
                          svg_escaped(methods_[s]));
    }
    return text;
  }

 private:
  double x_of(double budget, int plot_width) const {
    return left + inset + across_.at(budget) * (plot_width - 2 * inset);
  }
  double y_of(double value, int top) const { return top + plot_height * (1 - value / top_); }

  std::string axes(int top, int plot_width) const {
    std::string text;
    for (int tick = 0; tick <= 5; ++tick) {
      const double value = top_ * tick / 5;
      const double y = y_of(value, top);
      text += fmt::format("<path class='grid' d='M{} {:.1f}h{}'/>\n", left, y, plot_width);
      text += fmt::format("<text class='ink' x='{}' y='{:.1f}' text-anchor='end'>{:g}</text>\n",
                          left - 8, y + 4, value);
    }
    for (const double tick : across_.ticks) {
      const double x = x_of(tick, plot_width);
      text += fmt::format("<path class='grid' d='M{:.1f} {}v{}'/>\n", x, top, plot_height);
      text += fmt::format("<text class='ink' x='{:.1f}' y='{}' text-anchor='middle'>{:g}</text>\n",
                          x, top + plot_height + 18, tick);
    }
    text += fmt::format("<rect class='frame' x='{}' y='{}' width='{}' height='{}'/>\n", left, top,
                        plot_width, plot_height);
    return text + fmt::format(
                      "<text class='faint' x='{}' y='{}' text-anchor='middle'>budget: rows of a "
                      "query head</text>\n",
                      left + plot_width / 2, top + plot_height + 38);
  }

  std::string series_svg(std::size_t s, const std::vector<Point>& points, int top,
                         int plot_width) const {
    std::string marks;
    std::string path;
    for (const Point& point : points) {
      const double y = y_of(point.value, top);
      if (!point.budget) {
        path += fmt::format("M{} {:.1f}h{}", left, y, plot_width);
        marks += mark_svg(s, left + plot_width, y,
                          fmt::format("{}, all rows: {:.1f}", methods_[s], point.value));
        continue;
      }
      const double x = x_of(static_cast<double>(*point.budget), plot_width);
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
      marks += mark_svg(
          s, x, y, fmt::format("{}, {} rows: {:.1f}", methods_[s], *point.budget, point.value));
    }
    if (path.empty()) return {};
    return fmt::format("<g class='s{}'>\n<path class='line' d='{}'/>\n{}</g>\n", s % series_colours,
                       path, marks);
  }

  std::vector<std::string> methods_;
  std::vector<Panel> panels_;
  LogAxis across_;
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
  const Chart chart(table);
  const int text_width = margin + std::max(svg_text_width(title), svg_text_width(subtitle));
  const int width = std::max(left + least_plot_width + right, text_width);
  const bool characters = table.columns.size() == 1 && counts_characters(table.columns.front());
  const std::string up = characters                  ? "Characters repeated"
                         : table.columns.size() == 1 ? "Score in percent"
                                                     : "Score in percent, mean over tasks";
  return svg_head(width, chart.height(), title, subtitle, series_style) +
         chart.svg(width - left - right, up) + "</svg>\n";
}

}  // namespace topkv
