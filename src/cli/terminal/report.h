// What a needle run prints for people: answers, summary, time shares.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/eval/report/report_page.h"
#include "src/eval/report/summary.h"
#include "src/eval/run/eval_result.h"

namespace topkv::cli {

/// How a table gets into a width. First the columns that may be cut are cut, in this order and to 8
/// characters at the least; then the table becomes several, each with the key columns and some of
/// the others.
struct TableFit {
  std::size_t width = std::string::npos;  ///< characters of a line
  std::size_t keys = 1;                   ///< first columns, which tell a row from others
  std::vector<std::size_t> cut = {};      ///< columns that may be cut
};

/// Columns as wide as their widest text. Widths count characters (code points), not bytes.
std::string format_table(ResultTable table, const TableFit& fit = {});

/// One row per cell: what was asked, expected and answered. Cells in grid order.
ResultTable answers_of(const std::vector<EvalResult>& cells);
std::string answers_table(const std::vector<EvalResult>& cells, std::size_t width);

ResultTable summary_of(const std::vector<Summary>& summaries);
std::string summary_table(const std::vector<Summary>& summaries, std::size_t width);

/// "greedy", or "temperature 0.6, top-k 20, top-p 0.95".
std::string sampling_text(const SamplingOptions& sampling);

/// "matmul 61 %  attention 30 %  search 0 %  other 9 %".
std::string time_shares(const ForwardTimes& times);
/// Returns how many drafted tokens were accepted, and the tokens of a step.
std::string draft_text(const GenerateResult& result);
/// Adds the numbers of drafted and of accepted tokens to the figures for programs.
void add_drafts(nlohmann::ordered_json& json, const GenerateResult& result);

}  // namespace topkv::cli
