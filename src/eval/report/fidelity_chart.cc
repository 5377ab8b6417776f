#include "src/eval/report/fidelity_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "src/core/text/byte_text.h"
#include "src/eval/report/chart_writer.h"
#include "src/eval/report/fidelity_lines.h"

namespace topkv {
namespace {

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

/// "8 MiB": a power of two has no need for decimals.
std::string whole_bytes(double bytes) {
  std::string text = byte_text(static_cast<std::int64_t>(bytes));
  if (const std::size_t zero = text.find(".0 "); zero != text.npos) text.erase(zero, 2);
  return text;
}

/// One quantity of all settings that have a place.
class FidelityPanel {
 public:
  using Value = double (*)(const Fidelity&);

  FidelityPanel(const std::vector<Series>& series, Value value, const PlotArea& area,
                ChartWriter& writer)
      : series_(series), value_(value), area_(area), writer_(writer) {
    std::vector<double> bytes, values;
    for (const Series& one : series) {
      for (const Fidelity* point : one.points) {
        bytes.push_back(static_cast<double>(point->bytes_read));
        values.push_back(value(*point));
      }
    }
    across_ = binary_axis(bytes);
    up_ = decimal_axis(values);
    has_low_row_ = std::any_of(values.begin(), values.end(), [&](double v) { return is_low(v); });
  }

  void draw(const std::string& title) {
    writer_.panel_title(area_, title);
    draw_axes();
    for (std::size_t s = 0; s < series_.size(); ++s) draw_series(s);
    draw_labels();
  }

 private:
  static constexpr int low_row = 26;

  /// Zero, or far below all that the axis shows.
  bool is_low(double value) const { return !(value >= up_.low); }
  double y_of(double value) const {
    if (is_low(value)) return area_.bottom() - chart::inset;
    const int low_end = area_.bottom() - chart::inset - (has_low_row_ ? low_row : 0);
    return low_end - up_.at(value) * (low_end - area_.y - chart::inset);
  }
  double x_of(const Fidelity* point) const {
    return area_.across(across_, static_cast<double>(point->bytes_read));
  }
  double y_of(const Fidelity* point) const { return y_of(value_(*point)); }

  void draw_axes() {
    std::vector<Tick> up, across;
    for (const double tick : up_.ticks) up.push_back({y_of(tick), decimal_text(tick)});
    if (has_low_row_) up.push_back({y_of(0.0), "< " + decimal_text(up_.high / most_range)});
    for (const double tick : across_.ticks)
      across.push_back({area_.across(across_, tick), whole_bytes(tick)});
    writer_.tick_labels(area_, up);
    writer_.axes(area_, up, across, "bytes read per token");
  }

  void draw_series(std::size_t s) {
    const std::vector<const Fidelity*>& points = series_[s].points;
    writer_.begin_series(s);
    if (points.size() > 1) {
      std::string path;
      for (const Fidelity* point : points) add_point(path, x_of(point), y_of(point));
      writer_.path("line", path);
    }
    for (const Fidelity* point : points) {
      writer_.mark(s, x_of(point), y_of(point),
                   fmt::format("{}: {:.3g}, {} per token", setting_text(*point), value_(*point),
                               byte_text(point->bytes_read)));
    }
    writer_.end_series();
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
      const bool outside = place.x < area_.x || place.x + place.width > area_.x + area_.width ||
                           place.y < area_.y || place.y + place.height > area_.bottom();
      return sum + (outside ? 1000 : 0);
    };
    const Box& best =
        *std::min_element(places.begin(), places.end(),
                          [&](const Box& a, const Box& b) { return cost(a) < cost(b); });
    if (cost(best) >= Box{}.weight) return;  // on a mark or a label: neither could be read
    taken.push_back(best);
    writer_.text(best.x + best.width / 2, best.y + height - 2.5, label,
                 {.anchor = "middle", .classes = "ink near"});
  }

  const std::vector<Series>& series_;
  Value value_;
  PlotArea area_;
  ChartWriter& writer_;
  LogAxis across_, up_;
  bool has_low_row_ = false;
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
         std::isfinite(setting.kl.mean);
}

std::string fidelity_svg(const std::vector<Fidelity>& settings, const std::string& title,
                         const std::string& subtitle) {
  const std::vector<Series> series = series_of(settings, true);
  const std::vector<std::string> notes = notes_on(settings);
  constexpr int left = 92;
  constexpr int plot_height = 250;
  int text_width = std::max(svg_text_width(title), svg_text_width(subtitle));
  for (const std::string& note : notes) text_width = std::max(text_width, svg_text_width(note));
  const int width =
      std::max(left + chart::least_plot_width + chart::right, chart::margin + text_width);
  PlotArea area{left, chart::first_panel, width - left - chart::right, plot_height};
  ChartWriter writer;
  FidelityPanel(
      series, [](const Fidelity& of) { return of.error_mean; }, area, writer)
      .draw("Error of a layer's output, |out - dense| / |dense|, mean");
  area.y += plot_height + chart::below_plot;
  FidelityPanel(
      series, [](const Fidelity& of) { return of.kl.mean; }, area, writer)
      .draw("KL divergence of the next token from dense attention's, nats, mean");
  int y = area.y + plot_height + chart::below_plot - 22;
  for (std::size_t s = 0; s < series.size(); ++s, y += chart::legend_line) {
    writer.legend_entry(s, left, y, series[s].name);
  }
  for (const std::string& note : notes) {
    writer.text(chart::margin, y + 6, note, {.classes = "faint"});
    y += chart::legend_line;
  }
  return writer.document(width, y + 10, title, subtitle, series_style);
}

}  // namespace topkv
