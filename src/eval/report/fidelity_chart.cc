#include "src/eval/report/fidelity_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "src/core/text/byte_text.h"
#include "src/eval/report/chart_layout.h"
#include "src/eval/report/fidelity_lines.h"
#include "src/eval/report/log_axis.h"
#include "src/eval/report/series_marks.h"
#include "src/eval/report/svg.h"

namespace topkv {
namespace {

using chart::first_panel;
using chart::inset;
using chart::least_plot_width;
using chart::legend_line;
using chart::margin;
using chart::right;

constexpr int left = 92;
constexpr int plot_height = 250;
constexpr int low_row = 26;
constexpr int panel_step = plot_height + chart::below_plot;

/// Settings that differ in k alone, in the order of what they read.
struct Series {
  std::string name;
  std::vector<const Fidelity*> points;
};

std::string series_name(const Fidelity& setting) {
  const std::string rule = rule_text(setting.options);
  return fmt::format("{}, tail {}{}{}", setting.options.index, setting.options.tail,
                     rule.empty() ? "" : ", ", rule);
}

std::vector<Series> series_of(const std::vector<Fidelity>& settings, bool placed) {
  std::vector<Series> all;
  for (const Fidelity& setting : settings) {
    if (has_place(setting) != placed) continue;
    const std::string name = series_name(setting);
    auto at = std::find_if(all.begin(), all.end(),
                           [&](const Series& series) { return series.name == name; });
    if (at == all.end()) at = all.insert(all.end(), {name, {}});
    at->points.push_back(&setting);
  }
  for (Series& series : all) {
    std::stable_sort(
        series.points.begin(), series.points.end(),
        [](const Fidelity* a, const Fidelity* b) { return a->bytes_read < b->bytes_read; });
  }
  return all;
}

/// 0.02, 1e-5.
std::string decimal_text(double value) {
  const int exponent = static_cast<int>(std::floor(std::log10(value) + 1e-9));
  if (exponent >= -3) return fmt::format("{:g}", value);
  return fmt::format("{:.0f}e{}", value / std::pow(10.0, exponent), exponent);
}

struct Box {
  double x = 0, y = 0, width = 0, height = 0;
  double weight = 10;  ///< how bad it is to cover it
  bool meets(const Box& other) const {
    return x < other.x + other.width && other.x < x + width && y < other.y + other.height &&
           other.y < y + height;
  }
};

/// One quantity of all settings that have a place.
class Panel {
 public:
  Panel(const std::vector<Series>& series, double Fidelity::*value, int top, int plot_width)
      : series_(series), value_(value), top_(top), plot_width_(plot_width) {
    std::vector<double> bytes, values;
    for (const Series& one : series) {
      for (const Fidelity* point : one.points) {
        bytes.push_back(static_cast<double>(point->bytes_read));
        values.push_back(point->*value);
      }
    }
    across_ = binary_axis(bytes);
    up_ = decimal_axis(values);
    has_low_row_ = std::any_of(values.begin(), values.end(), [&](double v) { return is_low(v); });
  }

  std::string svg(const std::string& title) {
    text_ = fmt::format("<text class='ink' x='{}' y='{}' font-weight='600'>{}</text>\n", left,
                        top_ - 12, svg_escaped(title));
    draw_axes();
    for (std::size_t s = 0; s < series_.size(); ++s) draw_series(s);
    draw_labels();
    return text_;
  }

 private:
  int bottom() const { return top_ + plot_height; }
  /// Zero, or far below all that the axis shows.
  bool is_low(double value) const { return !(value >= up_.low); }
  double x_of(double bytes) const {
    return left + inset + across_.at(bytes) * (plot_width_ - 2 * inset);
  }
  double y_of(double value) const {
    if (is_low(value)) return bottom() - inset;
    const int low_end = bottom() - inset - (has_low_row_ ? low_row : 0);
    return low_end - up_.at(value) * (low_end - top_ - inset);
  }
  double x_of(const Fidelity* point) const { return x_of(static_cast<double>(point->bytes_read)); }
  double y_of(const Fidelity* point) const { return y_of(point->*value_); }

  void draw_tick(double y, const std::string& label) {
    text_ += fmt::format("<path class='grid' d='M{} {:.1f}h{}'/>\n", left, y, plot_width_);
    text_ += fmt::format("<text class='ink' x='{}' y='{:.1f}' text-anchor='end'>{}</text>\n",
                         left - 8, y + 4, svg_escaped(label));
  }

  void draw_axes() {
    for (const double tick : up_.ticks) draw_tick(y_of(tick), decimal_text(tick));
    if (has_low_row_) draw_tick(y_of(0.0), "< " + decimal_text(up_.high / most_range));
    for (const double tick : across_.ticks) {
      const double x = x_of(tick);
      text_ += fmt::format("<path class='grid' d='M{:.1f} {}v{}'/>\n", x, top_, plot_height);
      text_ += fmt::format("<text class='ink' x='{:.1f}' y='{}' text-anchor='middle'>{}</text>\n",
                           x, bottom() + 18, whole_bytes(tick));
    }
    text_ += fmt::format("<rect class='frame' x='{}' y='{}' width='{}' height='{}'/>\n", left, top_,
                         plot_width_, plot_height);
    text_ += fmt::format(
        "<text class='faint' x='{}' y='{}' text-anchor='middle'>bytes read per token</text>\n",
        left + plot_width_ / 2, bottom() + 38);
  }

  /// "8 MiB": a power of two has no need for decimals.
  static std::string whole_bytes(double bytes) {
    std::string text = byte_text(static_cast<std::int64_t>(bytes));
    if (const std::size_t zero = text.find(".0 "); zero != text.npos) text.erase(zero, 2);
    return text;
  }

  void draw_series(std::size_t s) {
    const std::vector<const Fidelity*>& points = series_[s].points;
    text_ += fmt::format("<g class='s{}'>\n", s % series_colours);
    if (points.size() > 1) {
      std::string path;
      for (const Fidelity* point : points) {
        path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x_of(point), y_of(point));
      }
      text_ += fmt::format("<path class='line' d='{}'/>\n", path);
    }
    for (const Fidelity* point : points) {
      text_ += mark_svg(s, x_of(point), y_of(point),
                        fmt::format("{}: {:.3g}, {} per token", setting_text(*point),
                                    point->*value_, byte_text(point->bytes_read)));
    }
    text_ += "</g>\n";
  }

  /// Each point's k beside it, where it covers least; none where there is no room.
  void draw_labels() {
    std::vector<Box> taken;
    for (const Series& series : series_) {
      for (std::size_t i = 1; i < series.points.size(); ++i) {
        add_line(series.points[i - 1], series.points[i], taken);
      }
    }
    for (const Series& series : series_) {
      for (const Fidelity* point : series.points) {
        taken.push_back(
            {x_of(point) - mark_reach, y_of(point) - mark_reach, 2 * mark_reach, 2 * mark_reach});
      }
    }
    for (const Series& series : series_) {
      for (const Fidelity* point : series.points) draw_label(*point, taken);
    }
  }

  /// A line as small pieces.
  void add_line(const Fidelity* from, const Fidelity* to, std::vector<Box>& taken) const {
    const double x = x_of(from), y = y_of(from);
    const double width = x_of(to) - x, height = y_of(to) - y;
    const int pieces = 1 + static_cast<int>(std::hypot(width, height) / 4);
    for (int i = 0; i <= pieces; ++i) {
      taken.push_back({x + width * i / pieces - 1, y + height * i / pieces - 1, 2, 2, 1});
    }
  }

  void draw_label(const Fidelity& point, std::vector<Box>& taken) {
    constexpr double height = 13;
    constexpr double apart = mark_reach + 2;
    constexpr std::size_t longest = 12;  // a k for each layer is longer; the mark's title has it
    const bool cut = point.k.size() > longest;
    const double width = 7.0 * static_cast<double>(cut ? longest : point.k.size());
    const std::string label = cut ? point.k.substr(0, longest - 1) + "…" : point.k;
    const double x = x_of(&point);
    const double y = y_of(&point);
    const std::array<Box, 8> places = {
        {{x + apart, y - height / 2, width, height},
         {x - apart - width, y - height / 2, width, height},
         {x - width / 2, y - apart - height, width, height},
         {x - width / 2, y + apart, width, height},
         {x + apart, y - apart - height / 2, width, height},
         {x + apart, y + apart - height / 2, width, height},
         {x - apart - width, y - apart - height / 2, width, height},
         {x - apart - width, y + apart - height / 2, width, height}}};
    const auto cost = [&](const Box& place) {
      double sum = 0;
      for (const Box& box : taken) sum += box.meets(place) ? box.weight : 0;
      const bool outside = place.x < left || place.x + place.width > left + plot_width_ ||
                           place.y < top_ || place.y + place.height > bottom();
      return sum + (outside ? 1000 : 0);
    };
    const Box& best =
        *std::min_element(places.begin(), places.end(),
                          [&](const Box& a, const Box& b) { return cost(a) < cost(b); });
    if (cost(best) >= Box{}.weight) return;  // on a mark or a label: neither could be read
    taken.push_back(best);
    text_ +=
        fmt::format("<text class='ink near' x='{:.1f}' y='{:.1f}' text-anchor='middle'>{}</text>\n",
                    best.x + best.width / 2, best.y + height - 2.5, svg_escaped(label));
  }

  const std::vector<Series>& series_;
  double Fidelity::*value_;
  int top_;
  int plot_width_;
  LogAxis across_, up_;
  bool has_low_row_ = false;
  std::string text_;
};

/// What the marks and the figures beside them are, and which settings have no place.
std::vector<std::string> notes_on(const std::vector<Fidelity>& settings) {
  std::vector<std::string> notes = {
      "Figures beside the marks, where there is room: top k. Point at a mark for all that it is. "
      "Lower is nearer to dense attention."};
  for (const Series& series : series_of(settings, false)) {
    std::string ks;
    for (const Fidelity* point : series.points) ks += (ks.empty() ? "" : ", ") + point->k;
    notes.push_back(fmt::format("Not shown, as bytes read or distances are not known: {}, top {}",
                                series.name, ks));
  }
  return notes;
}

}  // namespace

bool has_place(const Fidelity& setting) {
  return setting.bytes_read > 0 && std::isfinite(setting.error_mean) &&
         std::isfinite(setting.kl_mean);
}

std::string fidelity_svg(const std::vector<Fidelity>& settings, const std::string& title,
                         const std::string& subtitle) {
  const std::vector<Series> series = series_of(settings, true);
  const std::vector<std::string> notes = notes_on(settings);
  int text_width = std::max(svg_text_width(title), svg_text_width(subtitle));
  for (const std::string& note : notes) text_width = std::max(text_width, svg_text_width(note));
  const int width = std::max(left + least_plot_width + right, margin + text_width);
  const int plot_width = width - left - right;
  const int legend = first_panel + 2 * panel_step - 22;
  const int height = legend + legend_line * static_cast<int>(series.size() + notes.size()) + 10;

  std::string text = svg_head(width, height, title, subtitle, series_style);
  text += Panel(series, &Fidelity::error_mean, first_panel, plot_width)
              .svg("Error of a layer's output, |out - dense| / |dense|, mean");
  text += Panel(series, &Fidelity::kl_mean, first_panel + panel_step, plot_width)
              .svg("KL divergence of the next token from dense attention's, nats, mean");
  int y = legend;
  for (std::size_t s = 0; s < series.size(); ++s, y += legend_line) {
    text += fmt::format("<g class='s{}'>\n<path class='line' d='M{} {}h32'/>\n", s % series_colours,
                        left, y);
    text += mark_svg(s, left + 16, y, "") + "</g>\n";
    text += fmt::format("<text class='ink' x='{}' y='{}'>{}</text>\n", left + 42, y + 4,
                        svg_escaped(series[s].name));
  }
  for (const std::string& note : notes) {
    text += fmt::format("<text class='faint' x='{}' y='{}'>{}</text>\n", margin, y + 6,
                        svg_escaped(note));
    y += legend_line;
  }
  return text + "</svg>\n";
}

}  // namespace topkv
