#include "src/cli/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "src/cli/numbers.h"

namespace topkv::cli {
namespace {

bool starts_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) != 0x80U; }

std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), starts_character));
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

bool several_indices(const std::vector<Cell>& cells) {
  return std::any_of(cells.begin(), cells.end(),
                     [&](const Cell& cell) { return cell.index != cells.front().index; });
}

std::string or_dash(bool known, const std::string& text) { return known ? text : "-"; }

}  // namespace

std::string format_table(const std::vector<std::string>& headings,
                         const std::vector<std::vector<std::string>>& rows,
                         const std::vector<bool>& right_aligned) {
  std::vector<std::size_t> widths;
  for (std::size_t column = 0; column < headings.size(); ++column) {
    widths.push_back(width_of(headings[column]));
    for (const auto& row : rows) widths[column] = std::max(widths[column], width_of(row[column]));
  }
  std::string text;
  const auto add = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t column = 0; column < row.size(); ++column) {
      const std::string space(widths[column] - width_of(row[column]), ' ');
      if (column > 0) line += "  ";
      line += right_aligned[column] ? space + row[column] : row[column] + space;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add(headings);
  for (const auto& row : rows) add(row);
  return text;
}

std::string one_line(const std::string& text, std::size_t width) {
  std::string line;
  for (const char c : text) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    if (!control && c != ' ') {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  if (!line.empty() && line.back() == ' ') line.pop_back();
  if (width_of(line) <= width) return line;
  std::size_t bytes = 0;
  for (std::size_t characters = 0; bytes < line.size(); ++bytes) {
    if (starts_character(line[bytes]) && ++characters >= width) break;
  }
  return line.substr(0, bytes) + "…";
}

std::string answers_table(const std::vector<Cell>& cells) {
  if (cells.empty()) return {};
  const bool with_index = several_indices(cells);
  const bool with_key =
      std::any_of(cells.begin(), cells.end(), [](const Cell& cell) { return !cell.key.empty(); });
  constexpr std::size_t widest = 40;
  std::vector<std::string> headings = {"context", "depth"};
  std::vector<bool> right = {true, true};
  const auto column = [&](const char* heading, bool right_aligned) {
    headings.emplace_back(heading);
    right.push_back(right_aligned);
  };
  if (with_index) column("index", false);
  if (with_key) column("key", false);
  column("expected", false);
  column("answer", false);
  column("found", false);
  column("tokens/s", true);
  std::vector<std::vector<std::string>> rows;
  for (const Cell& cell : cells) {
    std::vector<std::string> row = {format_count(cell.length), format_percent(cell.depth) + " %"};
    if (with_index) row.push_back(one_line(cell.index, widest));
    if (with_key) row.push_back(cell.key);
    row.push_back(one_line(cell.value, widest));
    row.push_back(one_line(cell.answer, widest));
    row.emplace_back(cell.found ? "yes" : "no");
    row.push_back(format_rate(cell.decode_tokens_per_second));
    rows.push_back(std::move(row));
  }
  return format_table(headings, rows, right);
}

std::vector<Summary> summarise(const std::vector<Cell>& cells) {
  std::vector<Summary> summaries;
  std::vector<std::pair<double, double>> decoded;  // tokens, seconds
  for (const Cell& cell : cells) {
    auto at = std::find_if(summaries.begin(), summaries.end(), [&](const Summary& summary) {
      return summary.length == cell.length && summary.index == cell.index;
    });
    if (at == summaries.end()) {
      summaries.push_back({});
      summaries.back().length = cell.length;
      summaries.back().index = cell.index;
      decoded.emplace_back(0, 0);
      at = summaries.end() - 1;
    }
    at->asked += 1;
    at->found += cell.found ? 1 : 0;
    at->prefill_tokens_per_second += cell.prefill_tokens_per_second;
    at->index_build_seconds += cell.index_build_seconds;
    at->first_token_seconds +=
        cell.prefill_seconds + cell.index_build_seconds + cell.question_seconds;
    at->index_bytes = std::max(at->index_bytes, cell.index_bytes);
    at->rows_bytes = std::max(at->rows_bytes, cell.rows_bytes);
    at->rows_per_head += cell.rows_per_head;
    at->recall += cell.recall;
    auto& [tokens, seconds] = decoded[static_cast<std::size_t>(at - summaries.begin())];
    tokens += static_cast<double>(cell.decode_steps);
    seconds += cell.decode_seconds;
  }
  for (std::size_t i = 0; i < summaries.size(); ++i) {
    const auto asked = static_cast<double>(summaries[i].asked);
    summaries[i].prefill_tokens_per_second /= asked;
    summaries[i].index_build_seconds /= asked;
    summaries[i].first_token_seconds /= asked;
    summaries[i].rows_per_head /= asked;
    summaries[i].recall /= asked;
    const auto& [tokens, seconds] = decoded[i];
    summaries[i].decode_tokens_per_second = seconds > 0 ? tokens / seconds : 0;
  }
  return summaries;
}

std::string summary_table(const std::vector<Summary>& summaries) {
  std::vector<std::vector<std::string>> rows;
  for (const Summary& summary : summaries) {
    const bool built = summary.index_bytes > 0;
    rows.push_back({format_count(summary.length), summary.index,
                    fmt::format("{}/{}", summary.found, summary.asked),
                    format_rate(summary.prefill_tokens_per_second),
                    format_rate(summary.decode_tokens_per_second),
                    fmt::format("{:.0f}", summary.rows_per_head),
                    or_dash(summary.recall >= 0, fmt::format("{:.3f}", summary.recall)),
                    format_bytes(summary.rows_bytes),
                    or_dash(built, format_bytes(summary.index_bytes)),
                    or_dash(built, format_seconds(summary.index_build_seconds)),
                    format_seconds(summary.first_token_seconds)});
  }
  return format_table({"context", "index", "found", "prefill tok/s", "decode tok/s", "rows/head",
                       "recall", "KV rows", "index size", "index wait", "first token"},
                      rows, {true, false, true, true, true, true, true, true, true, true, true});
}

std::string summary_csv(const std::vector<Summary>& summaries) {
  std::string text =
      "context_tokens,index,asked,found,score,prefill_tokens_per_second,"
      "decode_tokens_per_second,rows_per_head,recall,rows_bytes,index_bytes,index_build_seconds,"
      "first_token_seconds\n";
  for (const Summary& summary : summaries) {
    text += fmt::format("{},{},{},{},{:.4f},{:.2f},{:.3f},{:.2f},{:.4f},{},{},{:.3f},{:.3f}\n",
                        summary.length, csv_field(summary.index), summary.asked, summary.found,
                        summary.score(), summary.prefill_tokens_per_second,
                        summary.decode_tokens_per_second, summary.rows_per_head, summary.recall,
                        summary.rows_bytes, summary.index_bytes, summary.index_build_seconds,
                        summary.first_token_seconds);
  }
  return text;
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
