// What became of the answers of an evaluation: a score for each task, method, length and budget.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/eval/run/confidence_interval.h"
#include "src/eval/run/eval_result.h"

namespace topkv {

/// The order in which people read them, and what is left out.
struct EvalOrder {
  std::vector<std::string> tasks;
  std::vector<std::int64_t> lengths;
  std::vector<std::string> methods;
};

/// The mean over the samples of one task. Percent, but of repetition characters.
struct Score {
  std::string task;  ///< or a second measure of it: "qa_f1"
  std::string method;
  std::int64_t length = 0;
  std::optional<std::int64_t> budget = {};  ///< none: all rows
  std::int64_t samples = 0;
  double mean = 0;
  std::optional<Interval> interval = {};  ///< of 95 %
  double rows_per_head = 0;               ///< mean
  double window_rows = 0;                 ///< mean of window and sinks
  std::optional<double> bytes_read = {};  ///< mean, per token; none where one is not known
};

/// Whether a task's scores are counts of characters.
bool counts_characters(const std::string& task);

/// Of answers that have a score: by length, method, budget and task.
std::vector<Score> scores_of(const std::vector<EvalResult>& results, const EvalOrder& order);

/// What one method with one budget made of one length.
struct ScoreRow {
  std::int64_t length = 0;
  std::string method;
  std::optional<std::int64_t> budget = {};
  std::vector<std::optional<Score>> scores;  ///< of each column; none where nothing was asked
  double rows_per_head = 0;                  ///< mean over these
  double window_rows = 0;                    ///< likewise
  std::optional<double> bytes_read = {};     ///< likewise; none where one is not known
  /// In percent over all columns, as RULER's, but for those that count characters and second
  /// measures; none where one is missing or all are left out.
  std::optional<double> average = {};
};

struct ScoreTable {
  std::vector<std::string> columns;  ///< tasks and second measures that have a score
  std::vector<ScoreRow> rows;
};

ScoreTable score_table(const std::vector<Score>& scores);

/// RULER's form: a line for each method, length and budget, a column for each task; behind their
/// average what it took, rows_per_head and bytes_read. RFC 4180, with a heading line; empty where
/// nothing was asked or known.
std::string summary_csv(const ScoreTable& table);

/// The long form: a line for each score, with its interval.
std::string scores_csv(const std::vector<Score>& scores);

}  // namespace topkv
