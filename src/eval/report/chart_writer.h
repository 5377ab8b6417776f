// Writes the SVG pictures of results: texts, axes, lines, marks and legends. A chart decides where
// its panels lie and what they show. Pictures are light or dark as the reader prefers.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "src/eval/report/log_axis.h"

namespace topkv {

/// Plain text as it stands in an element or in a quoted attribute of SVG or HTML.
std::string svg_escaped(const std::string& text);

/// An upper estimate of how wide the text is drawn, in pixels.
int svg_text_width(const std::string& text);

/// Where the panels of a chart lie in its picture, in pixels.
namespace chart {

inline constexpr int margin = 20;
inline constexpr int right = 48;
inline constexpr int least_plot_width = 620;
inline constexpr int inset = 16;         ///< of the ends of an axis from the frame
inline constexpr int first_panel = 104;  ///< below title and subtitle
inline constexpr int below_plot = 98;    ///< of ticks, axis title and the next panel's title
inline constexpr int legend_line = 22;

}  // namespace chart

/// How far a mark reaches around its point, in pixels.
inline constexpr int mark_reach = 7;

/// A coordinate or a size as SVG has it: pixels that are whole numbers, or with one decimal.
struct Pixels {
  Pixels(int whole);     // NOLINT(google-explicit-constructor): a number as it is
  Pixels(double exact);  // NOLINT(google-explicit-constructor)
  std::string text;
};

struct TextStyle {
  std::string_view anchor = {};      ///< "middle" or "end" at x; empty: begins at x
  std::string_view classes = "ink";  ///< or faint; near beside it: smaller, readable over lines
  bool bold = false;
  bool upwards = false;  ///< turned around (x, y), read from below
};

/// The frame of a plot, in pixels.
struct PlotArea {
  int x = 0;
  int y = 0;
  int width = 0;
  int height = 0;

  int bottom() const { return y + height; }
  /// Where a value lies on the axis across.
  double across(const LogAxis& axis, double value) const {
    return x + chart::inset + axis.at(value) * (width - 2 * chart::inset);
  }
};

/// A place on an axis, in pixels from the left or the top of the picture.
struct Tick {
  double at = 0;
  std::string label;
};

/// Collects the elements of one picture in the order of the calls. All texts are plain. A series
/// has a colour and a shape of marks of its own, which every kind of colour vision tells apart;
/// after some series they repeat.
class ChartWriter {
 public:
  void text(const Pixels& x, const Pixels& y, const std::string& text, const TextStyle& style = {});
  void rect(std::string_view classes, int x, int y, int width, int height, int radius = 0);
  /// data: of SVG's attribute d.
  void path(std::string_view classes, std::string_view data);

  /// The title of a panel, above its frame.
  void panel_title(const PlotArea& area, const std::string& title);
  /// Labels at the left of the frame.
  void tick_labels(const PlotArea& area, const std::vector<Tick>& up);
  /// Grid lines of both axes, the frame, the labels of the lower axis and its title. A label that
  /// would run into the one before it is left out.
  void axes(const PlotArea& area, const std::vector<Tick>& up, const std::vector<Tick>& across,
            const std::string& title);

  /// What is drawn up to end_series() has the colour of this series.
  void begin_series(std::size_t series);
  void end_series();
  /// The mark of the series around (x, y). title: shown when the reader points at the mark.
  void mark(std::size_t series, double x, double y, const std::string& title = {});
  /// A sample of the series with its name, at (x, y).
  void legend_entry(std::size_t series, int x, int y, const std::string& name);

  /// The elements of `other`, after those that are there.
  void add(const ChartWriter& other) { elements_ += other.elements_; }

  /// The whole document: `width` x `height` pixels, with title and subtitle in its first 60.
  /// style: CSS of classes beyond those of this writer.
  std::string document(int width, int height, const std::string& title, const std::string& subtitle,
                       std::string_view style) const;

 private:
  std::string elements_;
};

/// For ChartWriter::document of a chart that has axes or series.
extern const char* const series_style;

/// Goes on to (x, y) in a path's data, or begins there.
void add_point(std::string& data, double x, double y);

}  // namespace topkv
