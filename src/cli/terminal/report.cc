#include "src/cli/terminal/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "src/cli/terminal/text_layout.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"

namespace topkv::cli {
namespace {

bool several_indices(const std::vector<EvalResult>& cells) {
  return std::any_of(cells.begin(), cells.end(),
                     [&](const EvalResult& cell) { return cell.method != cells.front().method; });
}

std::string or_dash(bool known, const std::string& text) { return known ? text : "-"; }

using Row = std::vector<std::string>;

// A table of some of the columns, `widths` wide.
std::string table_of(const std::vector<Row>& rows, const std::vector<std::size_t>& columns,
                     const std::vector<std::size_t>& widths, const std::vector<bool>& right) {
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (const std::size_t column : columns) {
      const std::string space(widths[column] - width_of(row[column]), ' ');
      if (column != columns.front()) line += "  ";
      line += right[column] ? space + row[column] : row[column] + space;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

// Takes `excess` characters from a column, if it has them; returns what is left to take.
std::size_t cut_column(std::vector<Row>& rows, std::size_t column, std::size_t& width,
                       std::size_t excess) {
  const std::size_t least = std::max<std::size_t>(8, width_of(rows.front()[column]));
  const std::size_t kept = std::min(width, std::max(least, width - std::min(width, excess)));
  for (Row& row : rows) row[column] = one_line(row[column], kept);
  return excess - (std::exchange(width, kept) - kept);
}

std::size_t sum_of(const std::vector<std::size_t>& widths,
                   const std::vector<std::size_t>& columns) {
  std::size_t sum = 0;
  for (const std::size_t column : columns) sum += widths[column] + 2;
  return sum - 2;
}

}  // namespace

std::string format_table(ResultTable table, const TableFit& fit) {
  std::vector<Row> rows = std::move(table.rows);
  const std::vector<bool>& right_aligned = table.right;
  rows.insert(rows.begin(), std::move(table.headings));
  std::vector<std::size_t> columns(rows.front().size());
  std::iota(columns.begin(), columns.end(), std::size_t{0});
  std::vector<std::size_t> widths(columns.size(), 0);
  for (const Row& row : rows) {
    for (const std::size_t column : columns) {
      widths[column] = std::max(widths[column], width_of(row[column]));
    }
  }
  if (sum_of(widths, columns) <= fit.width) {
    return table_of(rows, columns, widths, right_aligned);
  }
  std::size_t excess = sum_of(widths, columns) - fit.width;
  for (const std::size_t column : fit.cut) {
    if (excess > 0) excess = cut_column(rows, column, widths[column], excess);
  }
  if (excess == 0) return table_of(rows, columns, widths, right_aligned);
  const std::vector<std::size_t> keys(columns.begin(),
                                      columns.begin() + static_cast<std::ptrdiff_t>(fit.keys));
  const std::size_t narrowest =
      sum_of(widths, keys) + 2 +
      *std::max_element(widths.begin() + static_cast<std::ptrdiff_t>(fit.keys), widths.end());
  if (narrowest > fit.width) {
    cut_column(rows, keys.back(), widths[keys.back()], narrowest - fit.width);
  }
  std::string text;
  for (std::size_t next = fit.keys; next < columns.size();) {
    std::vector<std::size_t> some = keys;
    do {
      some.push_back(next++);
    } while (next < columns.size() && sum_of(widths, some) + 2 + widths[next] <= fit.width);
    if (!text.empty()) text += "\n";
    text += table_of(rows, some, widths, right_aligned);
  }
  return text;
}

ResultTable answers_of(const std::vector<EvalResult>& cells) {
  ResultTable table = {{"context", "depth"}, {}, {true, true}};
  if (cells.empty()) return table;
  const bool with_index = several_indices(cells);
  const bool with_key = std::any_of(cells.begin(), cells.end(),
                                    [](const EvalResult& cell) { return !cell.key.empty(); });
  constexpr std::size_t widest = 40;
  const auto column = [&](const char* heading, bool right_aligned) {
    table.headings.emplace_back(heading);
    table.right.push_back(right_aligned);
  };
  if (with_index) column("index", false);
  if (with_key) column("key", false);
  column("expected", false);
  column("answer", false);
  column("found", false);
  column("tokens/s", true);
  for (const EvalResult& cell : cells) {
    Row row = {format_count(cell.length), format_percent(cell.depth.value()) + " %"};
    if (with_index) row.push_back(one_line(cell.method, widest));
    if (with_key) row.push_back(cell.key);
    row.push_back(one_line(cell.references.front(), widest));
    row.push_back(one_line(cell.answer, widest));
    row.emplace_back(cell.found() ? "yes" : "no");
    row.push_back(format_rate(cell.decode_tokens_per_second().value_or(0)));
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string answers_table(const std::vector<EvalResult>& cells, std::size_t width) {
  if (cells.empty()) return {};
  ResultTable table = answers_of(cells);
  const std::size_t expected = table.headings.size() - 4;
  TableFit fit{.width = width, .keys = 2, .cut = {expected + 1, expected}};
  for (std::size_t text = expected; text-- > 2;) fit.cut.push_back(text);  // key and index
  return format_table(std::move(table), fit);
}

ResultTable summary_of(const std::vector<Summary>& summaries) {
  std::vector<Row> rows;
  for (const Summary& summary : summaries) {
    const bool built = summary.index_bytes > 0;
    rows.push_back({format_count(summary.length), summary.index,
                    fmt::format("{}/{}", summary.found, summary.asked),
                    format_rate(summary.prefill_tokens_per_second),
                    format_rate(summary.decode_tokens_per_second.value_or(0)),
                    fmt::format("{:.0f}", summary.rows_per_head),
                    summary.recall.has_value() ? fmt::format("{:.3f}", *summary.recall) : "-",
                    byte_text(summary.rows_bytes), or_dash(built, byte_text(summary.index_bytes)),
                    or_dash(built, format_seconds(summary.index_build_seconds)),
                    format_seconds(summary.first_token_seconds)});
  }
  return {{"context", "index", "found", "prefill tok/s", "decode tok/s", "rows/head", "recall",
           "KV rows", "index size", "index wait", "first token"},
          std::move(rows),
          {true, false, true, true, true, true, true, true, true, true, true}};
}

std::string summary_table(const std::vector<Summary>& summaries, std::size_t width) {
  return format_table(summary_of(summaries), {.width = width, .keys = 2, .cut = {}});
}

std::string sampling_text(const SamplingOptions& sampling) {
  std::string text = "greedy";
  if (sampling.temperature > 0) {
    text = fmt::format("temperature {:g}", sampling.temperature);
    if (sampling.top_k > 0) text += fmt::format(", top-k {}", sampling.top_k);
    if (sampling.top_p < 1) text += fmt::format(", top-p {:g}", sampling.top_p);
    if (sampling.min_p > 0) text += fmt::format(", min-p {:g}", sampling.min_p);
  }
  const auto penalty = [&](std::string_view name, double value, double without) {
    if (value != without) text += fmt::format(", {} penalty {:g}", name, value);
  };
  penalty("repetition", sampling.repetition_penalty, 1);
  penalty("frequency", sampling.frequency_penalty, 0);
  penalty("presence", sampling.presence_penalty, 0);
  return text;
}

std::string draft_text(const GenerateResult& result) {
  std::string text = fmt::format("{} of {} tokens accepted", format_grouped(result.accepted),
                                 format_grouped(result.drafted));
  if (result.model_drafted > 0) {
    text +=
        fmt::format(" ({} of {} by a draft model or layer)", format_grouped(result.model_accepted),
                    format_grouped(result.model_drafted));
  }
  return text + fmt::format(", {:.2f} tokens per step", result.tokens_per_step());
}

void add_drafts(nlohmann::ordered_json& json, const GenerateResult& result) {
  json["drafted_tokens"] = result.drafted;
  json["accepted_tokens"] = result.accepted;
  json["model_drafted_tokens"] = result.model_drafted;
  json["model_accepted_tokens"] = result.model_accepted;
}

std::string time_shares(const ForwardTimes& times) {
  const double total = times.total();
  if (!(total > 0)) return "not measured";
  const auto percent = [&](double seconds) { return 100 * seconds / total; };
  return fmt::format("matmul {:.0f} %  attention {:.0f} %  search {:.0f} %  other {:.0f} %",
                     percent(times.matmul), percent(times.attention), percent(times.search),
                     percent(times.other));
}

}  // namespace topkv::cli
