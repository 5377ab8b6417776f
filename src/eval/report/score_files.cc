#include "src/eval/report/score_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "src/core/io/files.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"
#include "src/eval/report/eval_chart.h"

namespace topkv {
namespace {

/// "80 [55–93]", or without what is not known.
std::string score_text(const std::optional<Score>& score) {
  if (!score) return "-";
  if (!score->interval) return fmt::format("{:.0f}", score->mean);
  return fmt::format("{:.0f} [{:.0f}–{:.0f}]", score->mean, score->interval->low,
                     score->interval->high);
}

}  // namespace

ResultTable result_table(const ScoreTable& table) {
  ResultTable text = {{"length", "method", "budget", "rows", "read"}, {}, {}};
  text.headings.insert(text.headings.end(), table.columns.begin(), table.columns.end());
  text.headings.emplace_back("average");
  for (const ScoreRow& row : table.rows) {
    text.rows.push_back(
        {format_count(row.length), row.method, row.budget ? fmt::format("{}", *row.budget) : "all",
         row.budget ? fmt::format("{:.0f}", row.rows_per_head) : "all",
         row.bytes_read ? byte_text(static_cast<std::int64_t>(*row.bytes_read)) : "-"});
    for (const std::optional<Score>& score : row.scores)
      text.rows.back().push_back(score_text(score));
    text.rows.back().push_back(row.average ? fmt::format("{:.1f}", *row.average) : "-");
  }
  text.right.assign(text.headings.size(), true);
  text.right[1] = false;
  return text;
}

ScoreFiles write_scores(const EvalDirectory& directory, const std::string& title,
                        const std::string& subtitle) {
  const nlohmann::ordered_json& configuration = directory.configuration();
  const std::vector<Score> scores =
      scores_of(directory.results(), {configuration.at("tasks").get<std::vector<std::string>>(),
                                      configuration.at("lengths").get<std::vector<std::int64_t>>(),
                                      configuration.at("methods").get<std::vector<std::string>>()});
  ScoreFiles files{.table = score_table(scores)};
  write_file(directory.file("summary.csv"), summary_csv(files.table));
  write_file(directory.file("scores.csv"), scores_csv(scores));
  files.picture = std::ranges::any_of(
      files.table.rows, [&](const ScoreRow& row) { return charted(files.table, row).has_value(); });
  std::string picture;
  if (files.picture) {
    picture = eval_svg(files.table, title, subtitle);
    write_file(directory.file("scores.svg"), picture);
  }
  write_file(directory.file("report.html"),
             html_page({.title = title,
                        .subtitle = files.picture ? std::string() : subtitle,
                        .picture = picture,
                        .parts = {{"Scores", result_table(files.table), scores_note}}},
                       configuration));
  return files;
}

}  // namespace topkv
