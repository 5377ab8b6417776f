#include "src/eval/run/eval_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "src/core/format/csv.h"

namespace topkv {
namespace {

constexpr const char* f1_suffix = "_f1";

bool is_second_measure(const std::string& column) { return column.ends_with(f1_suffix); }

/// Scores of samples, and rows, by length, method, budget and column, in the order to be read.
using Place = std::tuple<std::size_t, std::size_t, std::int64_t, std::size_t, bool>;

struct Samples {
  Score about;
  std::vector<double> scores;
  double rows = 0;
  double window_rows = 0;
  std::optional<double> bytes = 0;  ///< of all; none where one is not known
};

template <class T>
std::optional<std::size_t> place_in(const std::vector<T>& list, const T& item) {
  const auto at = std::ranges::find(list, item);
  if (at == list.end()) return {};
  return static_cast<std::size_t>(at - list.begin());
}

/// None where one is not known.
std::optional<double> sum_of(const std::optional<double>& sum, const std::optional<double>& more) {
  return sum && more ? std::optional<double>(*sum + *more) : std::nullopt;
}

std::string bytes_text(const std::optional<double>& bytes) {
  return bytes ? fmt::format("{:.0f}", *bytes) : "";
}

std::string budget_text(const std::optional<std::int64_t>& budget) {
  return budget ? fmt::format("{}", *budget) : "";
}

}  // namespace

bool counts_characters(const std::string& task) { return task == "repetition"; }

std::vector<Score> scores_of(const std::vector<EvalResult>& results, const EvalOrder& order) {
  std::map<Place, Samples> places;
  const auto add = [&](const EvalResult& result, const std::optional<double>& score,
                       const char* suffix) {
    const auto task = place_in(order.tasks, result.task);
    const auto length = place_in(order.lengths, result.length);
    const auto method = place_in(order.methods, result.method);
    if (!score || !task || !length || !method) return;
    Samples& samples =
        places[{*length, *method, result.budget.value_or(-1), *task, *suffix != '\0'}];
    samples.about.task = result.task + suffix;
    samples.about.method = result.method;
    samples.about.length = result.length;
    samples.about.budget = result.budget;
    samples.scores.push_back(*score);
    samples.rows += result.rows_per_head;
    samples.window_rows += static_cast<double>(result.window + result.sinks);
    samples.bytes = sum_of(samples.bytes, result.bytes_read);
  };
  for (const EvalResult& result : results) {
    add(result, result.score, "");
    add(result, result.f1, f1_suffix);
  }
  std::vector<Score> scores;
  for (const auto& [place, samples] : places) {
    Score score = samples.about;
    const bool characters = counts_characters(score.task);
    const double unit = characters ? 1 : 100;
    score.samples = std::ssize(samples.scores);
    for (const double one : samples.scores) score.mean += unit * one;
    score.mean /= static_cast<double>(score.samples);
    score.interval =
        mean_interval(samples.scores, characters ? std::numeric_limits<double>::infinity() : 1);
    if (score.interval) {
      score.interval->low *= unit;
      score.interval->high *= unit;
    }
    score.rows_per_head = samples.rows / static_cast<double>(score.samples);
    score.window_rows = samples.window_rows / static_cast<double>(score.samples);
    if (samples.bytes) score.bytes_read = *samples.bytes / static_cast<double>(score.samples);
    scores.push_back(std::move(score));
  }
  return scores;
}

ScoreTable score_table(const std::vector<Score>& scores) {
  ScoreTable table;
  for (const Score& score : scores) {
    if (!place_in(table.columns, score.task)) table.columns.push_back(score.task);
  }
  for (const Score& score : scores) {
    if (table.rows.empty() || table.rows.back().length != score.length ||
        table.rows.back().method != score.method || table.rows.back().budget != score.budget) {
      table.rows.push_back({score.length, score.method, score.budget, {}, 0, 0, 0, {}});
      table.rows.back().scores.resize(table.columns.size());
    }
    table.rows.back().scores[*place_in(table.columns, score.task)] = score;
  }
  for (ScoreRow& row : table.rows) {
    double sum = 0;
    std::int64_t count = 0;
    bool whole = true;
    std::int64_t asked = 0;
    for (const std::optional<Score>& score : row.scores) {
      if (!score) continue;
      row.rows_per_head += score->rows_per_head;
      row.window_rows += score->window_rows;
      row.bytes_read = sum_of(row.bytes_read, score->bytes_read);
      asked += 1;
    }
    row.rows_per_head /= static_cast<double>(asked);
    row.window_rows /= static_cast<double>(asked);
    if (row.bytes_read) *row.bytes_read /= static_cast<double>(asked);
    for (std::size_t column = 0; column < table.columns.size(); ++column) {
      const std::string& name = table.columns[column];
      if (counts_characters(name) || is_second_measure(name)) continue;
      whole = whole && row.scores[column].has_value();
      sum += row.scores[column] ? row.scores[column]->mean : 0;
      count += 1;
    }
    if (whole && count > 0) row.average = sum / static_cast<double>(count);
  }
  return table;
}

std::string summary_csv(const ScoreTable& table) {
  std::string text = "method,length,budget";
  for (const std::string& column : table.columns) text += "," + csv_field(column);
  text += ",average,rows_per_head,bytes_read\n";
  for (const ScoreRow& row : table.rows) {
    text += fmt::format("{},{},{}", csv_field(row.method), row.length, budget_text(row.budget));
    for (const std::optional<Score>& score : row.scores) {
      text += score ? fmt::format(",{:.2f}", score->mean) : ",";
    }
    text += row.average ? fmt::format(",{:.2f}", *row.average) : ",";
    text += fmt::format(",{:.2f},{}\n", row.rows_per_head, bytes_text(row.bytes_read));
  }
  return text;
}

std::string scores_csv(const std::vector<Score>& scores) {
  std::string text =
      "method,task,length,budget,n,score,ci_low,ci_high,interval,unit,rows_per_head,bytes_read\n";
  for (const Score& score : scores) {
    text += fmt::format("{},{},{},{},{},{:.2f},", csv_field(score.method), csv_field(score.task),
                        score.length, budget_text(score.budget), score.samples, score.mean);
    text += score.interval ? fmt::format("{:.2f},{:.2f},{},", score.interval->low,
                                         score.interval->high, score.interval->kind)
                           : ",,,";
    text += fmt::format("{},{:.2f},{}\n", counts_characters(score.task) ? "characters" : "percent",
                        score.rows_per_head, bytes_text(score.bytes_read));
  }
  return text;
}

}  // namespace topkv
