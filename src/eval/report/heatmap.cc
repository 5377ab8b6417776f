#include "src/eval/report/heatmap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "src/core/text/format_numbers.h"
#include "src/eval/report/chart_writer.h"

namespace topkv {
namespace {

// Blue and orange are told apart by every kind of colour vision; the marks in the cells do without
// colour altogether.
constexpr const char* cell_style = R"(
  .found { fill: #2f7ebc } .missed { fill: #f0883e } .open { fill: none; stroke: #9aa4ae; stroke-dasharray: 3 3 }
  .mark { fill: none; stroke: #ffffff; stroke-width: 2; stroke-linecap: round; stroke-linejoin: round }
  @media (prefers-color-scheme: dark) {
    .found { fill: #3b8fd1 } .missed { fill: #d9722b } .open { stroke: #59636e }
  })";

/// Of `panel`, how many cells that were run found their needle: "18 of 20 found".
std::string found_text(const Grid::Panel& panel) {
  std::int64_t found = 0;
  std::int64_t run = 0;
  for (const auto& row : panel.found) {
    for (const std::optional<bool>& cell : row) {
      run += cell ? 1 : 0;
      found += cell && *cell ? 1 : 0;
    }
  }
  return fmt::format("{} of {} found", found, run);
}

/// One panel, or small ones: as many beside each other as the picture takes, in rows of equal
/// length.
struct HeatmapLayout {
  static constexpr int left = 84;  // of depths and their title
  static constexpr int top = 92;
  static constexpr int cell_height = 30;
  static constexpr int gap = 3;
  static constexpr int panel_gap = 28;     // of panels beside each other
  static constexpr int below_panel = 66;   // of lengths and their title, up to the next panels
  static constexpr int panel_title = 40;   // of two lines
  static constexpr int most_width = 1280;  // that panels beside each other take, if one is no wider
  static constexpr int right_margin = 24;
  static constexpr int widest_cell = 200;

  /// text_width: of the lines above, which panels fill the width of.
  HeatmapLayout(const Grid& grid, int text_width) {
    const auto panels = static_cast<int>(grid.panels.size());
    const auto lengths = static_cast<int>(grid.lengths.size());
    named = panels > 1;
    cell_width = named ? std::clamp(264 / lengths, 44, 72) : std::clamp(480 / lengths, 52, 112);
    panel_width = std::max(cell_width * lengths, named ? 130 : 0);
    for (const Grid::Panel& panel : grid.panels) {
      if (named) panel_width = std::max(panel_width, svg_text_width(panel.index));
    }
    panel_height = cell_height * static_cast<int>(grid.depths.size());
    const int beside =
        std::clamp((most_width - left + panel_gap) / (panel_width + panel_gap), 1, panels);
    rows = (panels + beside - 1) / beside;
    columns = (panels + rows - 1) / rows;
    const int room = (text_width - left - right_margin - (columns - 1) * panel_gap) / columns;
    if (panel_width < room) {
      panel_width = std::max(panel_width, std::min(room, widest_cell * lengths));
      cell_width = panel_width / lengths;
    }
    first = top + (named ? panel_title : 0);
    row_step = panel_height + below_panel + (named ? panel_title : 0);
  }

  bool named = false;
  int cell_width = 0;
  int panel_width = 0;
  int panel_height = 0;
  int columns = 0;
  int rows = 0;
  int first = 0;     ///< top of the first row of panels
  int row_step = 0;  ///< from one row of panels to the next

  int x_of(int panel) const { return left + panel % columns * (panel_width + panel_gap); }
  int y_of(int panel) const { return first + panel / columns * row_step; }
  int right() const { return left + columns * panel_width + (columns - 1) * panel_gap; }
};

void draw_cell(ChartWriter& writer, int x, int y, int width, int height,
               const std::optional<bool>& found) {
  writer.rect(!found.has_value() ? "open" : *found ? "found" : "missed", x, y, width, height, 3);
  if (!found.has_value()) return;
  const int cx = x + width / 2;
  const int cy = y + height / 2;
  writer.path("mark", *found ? fmt::format("M{} {}l4 4l7 -8", cx - 6, cy)
                             : fmt::format("M{} {}l8 8m0 -8l-8 8", cx - 4, cy - 4));
}

void draw_panel(ChartWriter& writer, const Grid& grid, const HeatmapLayout& layout, int number) {
  const Grid::Panel& panel = grid.panels[static_cast<std::size_t>(number)];
  const int x = layout.x_of(number);
  const int y = layout.y_of(number);
  const int bottom = y + layout.panel_height;
  const int width = layout.cell_width - layout.gap;
  if (layout.named) {
    writer.text(x, y - 28, panel.index, {.bold = true});
    writer.text(x, y - 11, found_text(panel), {.classes = "faint"});
  }
  const auto column_x = [&](std::size_t column) {
    return x + static_cast<int>(column) * layout.cell_width;
  };
  for (std::size_t row = 0; row < grid.depths.size(); ++row) {
    for (std::size_t column = 0; column < grid.lengths.size(); ++column) {
      draw_cell(writer, column_x(column), y + static_cast<int>(row) * layout.cell_height, width,
                layout.cell_height - layout.gap, panel.found[row][column]);
    }
  }
  for (std::size_t column = 0; column < grid.lengths.size(); ++column) {
    writer.text(column_x(column) + width / 2, bottom + 17, format_count(grid.lengths[column]),
                {.anchor = "middle"});
  }
}

/// What all panels of a row share: depths at its left, the title of the lengths below it.
void draw_row(ChartWriter& writer, const Grid& grid, const HeatmapLayout& layout, int row) {
  const int y = layout.first + row * layout.row_step;
  const int bottom = y + layout.panel_height;
  for (std::size_t depth = 0; depth < grid.depths.size(); ++depth) {
    writer.text(layout.left - 10,
                y + static_cast<int>(depth) * layout.cell_height + layout.cell_height / 2 + 4,
                format_percent(grid.depths[depth]) + " %", {.anchor = "end"});
  }
  writer.text(layout.left + std::max(layout.right() - layout.left, 130) / 2, bottom + 36,
              "context length (tokens)", {.anchor = "middle", .classes = "faint"});
  writer.text(chart::margin, (y + bottom) / 2, "depth of the needle",
              {.anchor = "middle", .classes = "faint", .upwards = true});
}

bool any_open(const Grid& grid) {
  for (const Grid::Panel& panel : grid.panels) {
    for (const auto& row : panel.found) {
      if (std::find(row.begin(), row.end(), std::nullopt) != row.end()) return true;
    }
  }
  return false;
}

}  // namespace

Grid make_grid(const std::vector<EvalResult>& cells, std::vector<std::int64_t> lengths,
               std::vector<double> depths, const std::vector<std::string>& indices) {
  Grid grid{std::move(lengths), std::move(depths), {}};
  std::sort(grid.lengths.begin(), grid.lengths.end());
  std::sort(grid.depths.begin(), grid.depths.end());
  for (const std::string& index : indices) {
    Grid::Panel panel{index, {}};
    panel.found.assign(grid.depths.size(),
                       std::vector<std::optional<bool>>(grid.lengths.size(), std::nullopt));
    for (const EvalResult& cell : cells) {
      const auto row = std::find(grid.depths.begin(), grid.depths.end(), cell.depth);
      const auto column = std::find(grid.lengths.begin(), grid.lengths.end(), cell.length);
      if (cell.method != index || row == grid.depths.end() || column == grid.lengths.end())
        continue;
      panel.found[static_cast<std::size_t>(row - grid.depths.begin())]
                 [static_cast<std::size_t>(column - grid.lengths.begin())] = cell.found();
    }
    grid.panels.push_back(std::move(panel));
  }
  return grid;
}

std::string svg_heatmap(const Grid& grid, const std::string& title, const std::string& subtitle) {
  const int text_width = chart::margin + std::max(svg_text_width(title), svg_text_width(subtitle));
  const HeatmapLayout layout(grid, text_width);
  const int width =
      std::max(std::max(layout.right(), layout.left + 240) + layout.right_margin, text_width);
  const int legend = layout.first + layout.row_step * layout.rows - 6 -
                     (layout.named ? layout.panel_title - 14 : 0);
  ChartWriter writer;
  for (int row = 0; row < layout.rows; ++row) draw_row(writer, grid, layout, row);
  for (int panel = 0; panel < static_cast<int>(grid.panels.size()); ++panel) {
    draw_panel(writer, grid, layout, panel);
  }
  int x = layout.left;
  const auto entry = [&](const std::optional<bool>& found, const char* label, int entry_width) {
    draw_cell(writer, x, legend - 4, 26, 18, found);
    writer.text(x + 34, legend + 10, label);
    x += entry_width;
  };
  entry(true, "found", 90);
  entry(false, "missed", 100);
  if (any_open(grid)) entry(std::nullopt, "not run", 90);
  return writer.document(width, legend + 30, title, subtitle, cell_style);
}

}  // namespace topkv
