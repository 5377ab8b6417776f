// The needle grid as a picture: context length across, depth down, one colour for found and one
// for missed. Several indices have a panel each, beside each other, with what they found.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/eval/run/eval_result.h"

namespace topkv {

/// Cells arranged for drawing.
struct Grid {
  struct Panel {
    std::string index;
    /// [depths][lengths]; nothing where no cell was run.
    std::vector<std::vector<std::optional<bool>>> found;
  };
  std::vector<std::int64_t> lengths;  ///< ascending
  std::vector<double> depths;         ///< ascending
  std::vector<Panel> panels;
};

/// The whole grid of a run, of which the cells may cover a part.
Grid make_grid(const std::vector<EvalResult>& cells, std::vector<std::int64_t> lengths,
               std::vector<double> depths, const std::vector<std::string>& indices);

/// A self-contained SVG document, light or dark as the reader prefers. title and subtitle are
/// plain text.
std::string svg_heatmap(const Grid& grid, const std::string& title, const std::string& subtitle);

}  // namespace topkv
