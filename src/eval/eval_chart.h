// An evaluation as a picture: score against budget, a panel for each length and a line for each
// method. A method without a budget is a line across.
#pragma once

#include <optional>
#include <string>

#include "src/eval/eval_scores.h"

namespace topkv {

/// What a picture shows of a row: its average, or where only one task was asked that task's score.
std::optional<double> charted(const ScoreTable& table, const ScoreRow& row);

/// A self-contained SVG document, light or dark as the reader prefers. title and subtitle are plain
/// text. Rows without a value are left out. REQUIRES: a row with one.
std::string eval_svg(const ScoreTable& table, const std::string& title,
                     const std::string& subtitle);

}  // namespace topkv
