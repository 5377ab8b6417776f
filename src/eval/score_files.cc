#include "src/eval/score_files.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "src/core/files.h"
#include "src/eval/eval_chart.h"

namespace topkv {

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
  if (files.picture) {
    write_file(directory.file("scores.svg"), eval_svg(files.table, title, subtitle));
  }
  return files;
}

}  // namespace topkv
