#include "src/eval/heatmap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "src/core/figures.h"
#include "src/eval/svg.h"

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

struct Layout {
  explicit Layout(const Grid& grid)
      : cell_width(std::clamp(480 / static_cast<int>(grid.lengths.size()), 52, 112)) {}

  int left = 84;
  int top = 92;
  int cell_width;
  int cell_height = 30;
  int gap = 3;
  int panel_gap = 66;

  int panel_height(const Grid& grid) const {
    return cell_height * static_cast<int>(grid.depths.size());
  }
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

std::string panel_svg(const Grid& grid, const Grid::Panel& panel, const Layout& layout, int top,
                      bool named) {
  std::string text;
  const int width = layout.cell_width * static_cast<int>(grid.lengths.size());
  const int bottom = top + layout.panel_height(grid);
  if (named) {
    text += fmt::format("<text class='ink' x='{}' y='{}' font-weight='600'>{}</text>\n",
                        layout.left, top - 12, svg_escaped(panel.index));
  }
  for (std::size_t row = 0; row < grid.depths.size(); ++row) {
    const int y = top + static_cast<int>(row) * layout.cell_height;
    text += fmt::format("<text class='ink' x='{}' y='{}' text-anchor='end'>{} %</text>\n",
                        layout.left - 10, y + layout.cell_height / 2 + 4,
                        format_percent(grid.depths[row]));
    for (std::size_t column = 0; column < grid.lengths.size(); ++column) {
      text += cell_shape(layout.left + static_cast<int>(column) * layout.cell_width, y,
                         layout.cell_width - layout.gap, layout.cell_height - layout.gap,
                         panel.found[row][column]);
    }
  }
  for (std::size_t column = 0; column < grid.lengths.size(); ++column) {
    text += fmt::format("<text class='ink' x='{}' y='{}' text-anchor='middle'>{}</text>\n",
                        layout.left + static_cast<int>(column) * layout.cell_width +
                            (layout.cell_width - layout.gap) / 2,
                        bottom + 17, format_count(grid.lengths[column]));
  }
  text += fmt::format(
      "<text class='faint' x='{}' y='{}' text-anchor='middle'>context length "
      "(tokens)</text>\n",
      layout.left + std::max(width, 130) / 2, bottom + 36);
  const int middle = (top + bottom) / 2;
  text += fmt::format(
      "<text class='faint' x='20' y='{0}' text-anchor='middle' "
      "transform='rotate(-90 20 {0})'>depth of the needle</text>\n",
      middle);
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
  const Layout layout(grid);
  const bool named = grid.panels.size() > 1;
  const int columns = layout.cell_width * static_cast<int>(grid.lengths.size());
  const int text_width = std::max(svg_text_width(title), svg_text_width(subtitle));
  const int width = std::max(layout.left + std::max(columns, 240) + 24, 20 + text_width);
  const int first = layout.top + (named ? 24 : 0);
  const int step = layout.panel_height(grid) + layout.panel_gap + (named ? 14 : 0);
  const int legend = first + step * static_cast<int>(grid.panels.size()) - 6;
  const int height = legend + 30;

  std::string text = svg_head(width, height, title, subtitle, style);
  int top = first;
  for (const Grid::Panel& panel : grid.panels) {
    text += panel_svg(grid, panel, layout, top, named);
    top += step;
  }
  int x = layout.left;
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
