#include "src/eval/report/chart_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace topkv {
namespace {

constexpr std::size_t series_colours = 6;

// Around (0, 0).
constexpr std::array<const char*, 5> mark_shapes = {"m-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",
                                                    "m-5 -5h10v10h-10z", "m0 -7l7 7l-7 7l-7 -7z",
                                                    "m0 -6l7 11h-14z", "m0 6l7 -11h-14z"};

constexpr const char* common_style = R"(<style>
  .paper { fill: #ffffff } .ink { fill: #1f2328 } .faint { fill: #59636e }
  text { font-family: system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; font-size: 13px }
  .title { font-size: 17px; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } .ink { fill: #e6edf3 } .faint { fill: #9198a1 }
  })";

}  // namespace

const char* const series_style = R"(
  .grid { stroke: #d8dee4 } .frame { fill: none; stroke: #9aa4ae }
  .line { fill: none; stroke: currentColor; stroke-width: 2; stroke-opacity: 0.6 }
  .mark { fill: currentColor; stroke: #ffffff; stroke-width: 1.5 }
  .near { font-size: 12px; paint-order: stroke; stroke: #ffffff; stroke-width: 3px; stroke-linejoin: round }
  .s0 { color: #0072b2 } .s1 { color: #d55e00 } .s2 { color: #008f68 }
  .s3 { color: #aa3377 } .s4 { color: #8c6d00 } .s5 { color: #56606b }
  @media (prefers-color-scheme: dark) {
    .grid { stroke: #30363d } .frame { stroke: #59636e } .mark, .near { stroke: #0d1117 }
    .s0 { color: #4aa3df } .s1 { color: #ff8a3c } .s2 { color: #2fc79b }
    .s3 { color: #d97bb0 } .s4 { color: #d0b040 } .s5 { color: #a5afba }
  })";

std::string svg_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&apos;";
        break;
      default:
        // XML knows no control characters.
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

int svg_text_width(const std::string& text) {
  const auto continues = [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U;
  };
  return 8 * static_cast<int>(text.size() - static_cast<std::size_t>(std::count_if(
                                                text.begin(), text.end(), continues)));
}

Pixels::Pixels(int whole) : text(fmt::format("{}", whole)) {}
Pixels::Pixels(double exact) : text(fmt::format("{:.1f}", exact)) {}

void add_point(std::string& data, double x, double y) {
  data += fmt::format("{}{:.1f} {:.1f}", data.empty() ? "M" : "L", x, y);
}

void ChartWriter::text(const Pixels& x, const Pixels& y, const std::string& text,
                       const TextStyle& style) {
  elements_ += fmt::format("<text class='{}' x='{}' y='{}'", style.classes, x.text, y.text);
  if (!style.anchor.empty()) elements_ += fmt::format(" text-anchor='{}'", style.anchor);
  if (style.bold) elements_ += " font-weight='600'";
  if (style.upwards) elements_ += fmt::format(" transform='rotate(-90 {} {})'", x.text, y.text);
  elements_ += fmt::format(">{}</text>\n", svg_escaped(text));
}

void ChartWriter::rect(std::string_view classes, int x, int y, int width, int height, int radius) {
  elements_ += fmt::format("<rect class='{}' x='{}' y='{}' width='{}' height='{}'{}/>\n", classes,
                           x, y, width, height, radius > 0 ? fmt::format(" rx='{}'", radius) : "");
}

void ChartWriter::path(std::string_view classes, std::string_view data) {
  elements_ += fmt::format("<path class='{}' d='{}'/>\n", classes, data);
}

void ChartWriter::panel_title(const PlotArea& area, const std::string& title) {
  text(area.x, area.y - 12, title, {.bold = true});
}

void ChartWriter::tick_labels(const PlotArea& area, const std::vector<Tick>& up) {
  for (const Tick& tick : up) text(area.x - 8, tick.at + 4, tick.label, {.anchor = "end"});
}

void ChartWriter::axes(const PlotArea& area, const std::vector<Tick>& up,
                       const std::vector<Tick>& across, const std::string& title) {
  for (const Tick& tick : up) {
    path("grid", fmt::format("M{} {:.1f}h{}", area.x, tick.at, area.width));
  }
  double free_from = area.x - chart::margin;  // right of the labels that are there
  for (const Tick& tick : across) {
    path("grid", fmt::format("M{:.1f} {}v{}", tick.at, area.y, area.height));
    const double half = svg_text_width(tick.label) / 2.0;
    if (tick.at - half < free_from) continue;
    free_from = tick.at + half + 4;
    text(tick.at, area.bottom() + 18, tick.label, {.anchor = "middle"});
  }
  rect("frame", area.x, area.y, area.width, area.height);
  text(area.x + area.width / 2, area.bottom() + 38, title,
       {.anchor = "middle", .classes = "faint"});
}

void ChartWriter::begin_series(std::size_t series) {
  elements_ += fmt::format("<g class='s{}'>\n", series % series_colours);
}

void ChartWriter::end_series() { elements_ += "</g>\n"; }

void ChartWriter::mark(std::size_t series, double x, double y, const std::string& title) {
  elements_ +=
      fmt::format("<path class='mark' d='M{:.1f} {:.1f}{}'>{}</path>\n", x, y,
                  mark_shapes[series % mark_shapes.size()],
                  title.empty() ? "" : fmt::format("<title>{}</title>", svg_escaped(title)));
}

void ChartWriter::legend_entry(std::size_t series, int x, int y, const std::string& name) {
  begin_series(series);
  path("line", fmt::format("M{} {}h32", x, y));
  mark(series, x + 16, y);
  end_series();
  text(x + 42, y + 4, name);
}

std::string ChartWriter::document(int width, int height, const std::string& title,
                                  const std::string& subtitle, std::string_view style) const {
  ChartWriter head;
  head.text(chart::margin, 34, title, {.classes = "ink title"});
  head.text(chart::margin, 56, subtitle, {.classes = "faint"});
  return fmt::format(
             "<svg xmlns='http://www.w3.org/2000/svg' width='{0}' height='{1}' "
             "viewBox='0 0 {0} {1}' role='img' aria-label='{2}'>\n"
             "{3}{4}\n</style>\n<rect class='paper' width='{0}' height='{1}'/>\n",
             width, height, svg_escaped(title), common_style, style) +
         head.elements_ + elements_ + "</svg>\n";
}

}  // namespace topkv
