#include "src/eval/report/heatmap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "src/core/text/format_numbers.h"
#include "src/eval/report/svg.h"

namespace topkv {
namespace {

// Blue and orange are told apart by every kind of colour vision; the marks in the cells do without
// colour altogether.
constexpr const char* style = R"(
  .found { fill: #2f7ebc } .missed { fill: #f0883e } .open { fill: none; stroke: #9aa4ae; stroke-dasharray: 3 3 }
  .mark { fill: none; stroke: #ffffff; stroke-width: 2; stroke-linecap: round; stroke-linejoin: round }
  @media (prefers-color-scheme: dark) {
    .found { fill: #3b8fd1 } .missed { fill: #d9722b } .open { stroke: #59636e }
  })";

constexpr int left = 84;  // of depths and their title
constexpr int top = 92;
constexpr int cell_height = 30;
constexpr int gap = 3;
constexpr int panel_gap = 28;     // of panels beside each other
constexpr int below_panel = 66;   // of lengths and their title, up to the next row of panels
constexpr int panel_title = 40;   // of two lines
constexpr int most_width = 1280;  // that panels beside each other take, where one is no wider
constexpr int right_margin = 24;
constexpr int widest_cell = 200;

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
struct Layout {
  /// text_width: of the lines above, which panels fill the width of.
  Layout(const Grid& grid, int text_width) {
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

std::string cell_shape(int x, int y, int width, int height, const std::optional<bool>& found) {
  std::string text =
      fmt::format("<rect class='{}' x='{}' y='{}' width='{}' height='{}' rx='3'/>\n",
                  found.has_value() ? (*found ? "found" : "missed") : "open", x, y, width, height);
  const int cx = x + width / 2;
  const int cy = y + height / 2;
  if (found.has_value() && *found) {
    text += fmt::format("<path class='mark' d='M{} {}l4 4l7 -8'/>\n", cx - 6, cy);
  } else if (found.has_value()) {
    text += fmt::format("<path class='mark' d='M{0} {1}l8 8m0 -8l-8 8'/>\n", cx - 4, cy - 4);
  }
  return text;
}

std::string panel_svg(const Grid& grid, const Layout& layout, int number) {
  const Grid::Panel& panel = grid.panels[static_cast<std::size_t>(number)];
  const int x = layout.x_of(number);
  const int y = layout.y_of(number);
  const int bottom = y + layout.panel_height;
  std::string text;
  if (layout.named) {
    text += fmt::format("<text class='ink' x='{}' y='{}' font-weight='600'>{}</text>\n", x, y - 28,
                        svg_escaped(panel.index));
    text +=
        fmt::format("<text class='faint' x='{}' y='{}'>{}</text>\n", x, y - 11, found_text(panel));
  }
  for (std::size_t row = 0; row < grid.depths.size(); ++row) {
    for (std::size_t column = 0; column < grid.lengths.size(); ++column) {
      text += cell_shape(x + static_cast<int>(column) * layout.cell_width,
                         y + static_cast<int>(row) * cell_height, layout.cell_width - gap,
                         cell_height - gap, panel.found[row][column]);
    }
  }
  for (std::size_t column = 0; column < grid.lengths.size(); ++column) {
    text += fmt::format(
        "<text class='ink' x='{}' y='{}' text-anchor='middle'>{}</text>\n",
        x + static_cast<int>(column) * layout.cell_width + (layout.cell_width - gap) / 2,
        bottom + 17, format_count(grid.lengths[column]));
  }
  return text;
}

/// What all panels of a row share: depths at its left, the title of the lengths below it.
std::string row_svg(const Grid& grid, const Layout& layout, int row) {
  const int y = layout.first + row * layout.row_step;
  const int bottom = y + layout.panel_height;
  std::string text;
  for (std::size_t depth = 0; depth < grid.depths.size(); ++depth) {
    text += fmt::format("<text class='ink' x='{}' y='{}' text-anchor='end'>{} %</text>\n",
                        left - 10, y + static_cast<int>(depth) * cell_height + cell_height / 2 + 4,
                        format_percent(grid.depths[depth]));
  }
  text += fmt::format(
      "<text class='faint' x='{}' y='{}' text-anchor='middle'>context length "
      "(tokens)</text>\n",
      left + std::max(layout.right() - left, 130) / 2, bottom + 36);
  text += fmt::format(
      "<text class='faint' x='20' y='{0}' text-anchor='middle' "
      "transform='rotate(-90 20 {0})'>depth of the needle</text>\n",
      (y + bottom) / 2);
  return text;
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

Grid make_grid(const std::vector<Cell>& cells, std::vector<std::int64_t> lengths,
               std::vector<double> depths, const std::vector<std::string>& indices) {
  Grid grid{std::move(lengths), std::move(depths), {}};
  std::sort(grid.lengths.begin(), grid.lengths.end());
  std::sort(grid.depths.begin(), grid.depths.end());
  for (const std::string& index : indices) {
    Grid::Panel panel{index, {}};
    panel.found.assign(grid.depths.size(),
                       std::vector<std::optional<bool>>(grid.lengths.size(), std::nullopt));
    for (const Cell& cell : cells) {
      const auto row = std::find(grid.depths.begin(), grid.depths.end(), cell.depth);
      const auto column = std::find(grid.lengths.begin(), grid.lengths.end(), cell.length);
      if (cell.index != index || row == grid.depths.end() || column == grid.lengths.end()) continue;
      panel.found[static_cast<std::size_t>(row - grid.depths.begin())]
                 [static_cast<std::size_t>(column - grid.lengths.begin())] = cell.found;
    }
    grid.panels.push_back(std::move(panel));
  }
  return grid;
}

std::string svg_heatmap(const Grid& grid, const std::string& title, const std::string& subtitle) {
  const int text_width = 20 + std::max(svg_text_width(title), svg_text_width(subtitle));
  const Layout layout(grid, text_width);
  const int width = std::max(std::max(layout.right(), left + 240) + right_margin, text_width);
  const int legend =
      layout.first + layout.row_step * layout.rows - 6 - (layout.named ? panel_title - 14 : 0);
  const int height = legend + 30;

  std::string text = svg_head(width, height, title, subtitle, style);
  for (int row = 0; row < layout.rows; ++row) text += row_svg(grid, layout, row);
  for (int panel = 0; panel < static_cast<int>(grid.panels.size()); ++panel) {
    text += panel_svg(grid, layout, panel);
  }
  int x = left;
  const auto entry = [&](const std::optional<bool>& found, const char* label, int entry_width) {
    text += cell_shape(x, legend - 4, 26, 18, found);
    text += fmt::format("<text class='ink' x='{}' y='{}'>{}</text>\n", x + 34, legend + 10, label);
    x += entry_width;
  };
  entry(true, "found", 90);
  entry(false, "missed", 100);
  if (any_open(grid)) entry(std::nullopt, "not run", 90);
  return text + "</svg>\n";
}

}  // namespace topkv
