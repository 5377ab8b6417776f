#include "src/eval/report/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/core/format/csv.h"

namespace topkv {

std::vector<Summary> summarise(const std::vector<EvalResult>& cells) {
  std::vector<Summary> summaries;
  std::vector<std::pair<double, double>> decoded;        // tokens, seconds
  std::vector<std::pair<double, std::int64_t>> recalls;  // sum, cells that measured it
  for (const EvalResult& cell : cells) {
    auto at = std::find_if(summaries.begin(), summaries.end(), [&](const Summary& summary) {
      return summary.length == cell.length && summary.index == cell.method;
    });
    if (at == summaries.end()) {
      summaries.push_back({});
      summaries.back().length = cell.length;
      summaries.back().index = cell.method;
      decoded.emplace_back(0, 0);
      recalls.emplace_back(0, 0);
      at = summaries.end() - 1;
    }
    const auto number = static_cast<std::size_t>(at - summaries.begin());
    at->context_tokens = std::max(at->context_tokens, cell.context_tokens);
    at->asked += 1;
    at->found += cell.found() ? 1 : 0;
    at->prefill_tokens_per_second += cell.prefill_tokens_per_second();
    at->index_build_seconds += cell.index_build_seconds;
    at->first_token_seconds +=
        cell.prefill_seconds + cell.index_build_seconds + cell.question_seconds;
    at->index_bytes = std::max(at->index_bytes, cell.index_bytes);
    at->rows_bytes = std::max(at->rows_bytes, cell.rows_bytes);
    at->rows_per_head += cell.rows_per_head;
    if (cell.recall.has_value()) {
      recalls[number].first += *cell.recall;
      recalls[number].second += 1;
    }
    auto& [tokens, seconds] = decoded[number];
    tokens += static_cast<double>(cell.decode_steps);
    seconds += cell.decode_seconds;
  }
  for (std::size_t i = 0; i < summaries.size(); ++i) {
    const auto asked = static_cast<double>(summaries[i].asked);
    summaries[i].prefill_tokens_per_second /= asked;
    summaries[i].index_build_seconds /= asked;
    summaries[i].first_token_seconds /= asked;
    summaries[i].rows_per_head /= asked;
    const auto& [sum, measured] = recalls[i];
    if (measured > 0) summaries[i].recall = sum / static_cast<double>(measured);
    const auto& [tokens, seconds] = decoded[i];
    if (tokens > 0 && seconds > 0) summaries[i].decode_tokens_per_second = tokens / seconds;
  }
  return summaries;
}

std::string summary_csv(const std::vector<Summary>& summaries) {
  std::string text =
      "length,context_tokens,index,asked,found,score,prefill_tokens_per_second,"
      "decode_tokens_per_second,rows_per_head,recall,rows_bytes,index_bytes,index_build_seconds,"
      "first_token_seconds\n";
  const auto or_empty = [](const std::optional<double>& value, int digits) {
    return value.has_value() ? fmt::format("{:.{}f}", *value, digits) : "";
  };
  for (const Summary& summary : summaries) {
    text +=
        fmt::format("{},{},{},{},{},{:.4f},{:.2f},{},{:.2f},{},{},{},{:.3f},{:.3f}\n",
                    summary.length, summary.context_tokens, csv_field(summary.index), summary.asked,
                    summary.found, summary.score(), summary.prefill_tokens_per_second,
                    or_empty(summary.decode_tokens_per_second, 3), summary.rows_per_head,
                    or_empty(summary.recall, 4), summary.rows_bytes, summary.index_bytes,
                    summary.index_build_seconds, summary.first_token_seconds);
  }
  return text;
}

}  // namespace topkv
