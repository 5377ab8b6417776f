// The files that are made of an evaluation's answers.
#pragma once

#include <string>

#include "src/eval/eval_directory.h"
#include "src/eval/eval_scores.h"

namespace topkv {

struct ScoreFiles {
  ScoreTable table;
  bool picture = false;  ///< scores.svg is there: a row has what a picture shows
};

/// Writes summary.csv, scores.csv and scores.svg of all answers of the folder, in the order of its
/// configuration. title and subtitle are the picture's, plain text. Throws FileError.
ScoreFiles write_scores(const EvalDirectory& directory, const std::string& title,
                        const std::string& subtitle);

}  // namespace topkv
