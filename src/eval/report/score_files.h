// The files that are made of an evaluation's answers.
#pragma once

#include <string>

#include "src/eval/report/report_page.h"
#include "src/eval/run/eval_directory.h"
#include "src/eval/run/eval_scores.h"

namespace topkv {

/// Rows of the table as text: scores in percent with their intervals.
ResultTable result_table(const ScoreTable& table);

/// What the table's figures are.
inline constexpr const char* scores_note =
    "Percent, of repetition characters; in brackets 95 % intervals (Wilson's where every score is "
    "0 "
    "or 1, else Student's). rows: that a query head attended beyond window and sinks, per token "
    "and "
    "layer, on average. read: bytes of the context per token.";

struct ScoreFiles {
  ScoreTable table;
  bool picture = false;  ///< scores.svg is there: a row has what a picture shows
};

/// Writes summary.csv, scores.csv, scores.svg and report.html of all answers of the folder, in the
/// order of its configuration. title and subtitle are the picture's and the page's, plain text.
/// Throws FileError.
ScoreFiles write_scores(const EvalDirectory& directory, const std::string& title,
                        const std::string& subtitle);

}  // namespace topkv
