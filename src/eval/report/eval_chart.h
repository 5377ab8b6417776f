// An evaluation as a picture: a row of two panels for each length, score against the rows that are
// attended and against the bytes that are read, and a line for each method, through its budgets. A
// method without a budget is a line across.
#pragma once

#include <optional>
#include <string>

#include "src/eval/run/eval_scores.h"

namespace topkv {

/// What a picture shows of a row: its average, or where only one task was asked that task's score.
std::optional<double> charted(const ScoreTable& table, const ScoreRow& row);

/// A self-contained SVG document, light or dark as the reader prefers. title and subtitle are plain
/// text. Rows without a value are left out; those whose bytes are not known have no place in the
/// panels of these, and there are none where no row with a budget has. REQUIRES: a row with a
/// value.
std::string eval_svg(const ScoreTable& table, const std::string& title,
                     const std::string& subtitle);

}  // namespace topkv
