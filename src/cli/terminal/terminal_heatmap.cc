#include "src/cli/terminal/terminal_heatmap.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "src/core/text/format_numbers.h"

namespace topkv::cli {

std::string terminal_heatmap(const Grid& grid, bool colour, std::size_t width) {
  constexpr std::size_t left = 9;
  constexpr std::size_t cell = 7;
  const std::string unit = "  context";
  const std::size_t room = std::max(width, left + cell + unit.size()) - left - unit.size();
  std::string text;
  const auto add = [&](const Grid::Panel& panel, std::size_t begin, std::size_t end) {
    text += grid.panels.size() > 1 ? fmt::format("  depth   {}\n", panel.index) : "  depth\n";
    for (std::size_t row = 0; row < grid.depths.size(); ++row) {
      text += fmt::format("{:>5} %  ", format_percent(grid.depths[row]));
      for (std::size_t column = begin; column < end; ++column) {
        const std::optional<bool>& found = panel.found[row][column];
        // The marks are one character wide but several bytes: padded by hand.
        const char* mark = !found.has_value() ? " " : *found ? "✓" : "✗";
        const std::string padded = fmt::format("   {}   ", mark);
        if (!colour || !found.has_value()) {
          text += padded;
        } else {
          text += fmt::format("\x1b[48;5;{};38;5;231m{}\x1b[0m", *found ? 31 : 166, padded);
        }
      }
      text += "\n";
    }
    text += std::string(left, ' ');
    for (std::size_t column = begin; column < end; ++column) {
      text += fmt::format("{:^{}}", format_count(grid.lengths[column]), cell);
    }
    text += unit + "\n";
  };
  for (const Grid::Panel& panel : grid.panels) {
    for (std::size_t begin = 0; begin < grid.lengths.size(); begin += room / cell) {
      add(panel, begin, std::min(begin + room / cell, grid.lengths.size()));
    }
  }
  return text;
}

}  // namespace topkv::cli
