#include "src/eval/tasks/tsv_score.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "src/eval/tasks/scoring.h"

namespace topkv {
namespace {

using Row = std::vector<std::string>;

/// Calls use with each part of a text between separators, until it returns false.
template <class Use>
void each_part(std::string_view text, char separator, const Use& use) {
  for (;;) {
    const std::size_t end = std::min(text.find(separator), text.size());
    if (!use(text.substr(0, end)) || end == text.size()) return;
    text.remove_prefix(end + 1);
  }
}

Row row_of(std::string_view line) {
  Row row;
  each_part(line, '\t', [&](std::string_view cell) {
    std::string plain = squad_normalised(cell);
    std::erase(plain, ' ');
    row.push_back(std::move(plain));
    return true;
  });
  return row;
}

bool is_empty(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

/// The rows of the lines up to the first empty one. Those before the first other line do not count.
std::vector<Row> rows_of(std::string_view text) {
  std::vector<Row> rows;
  each_part(text, '\n', [&](std::string_view line) {
    if (is_empty(line)) return rows.empty();
    rows.push_back(row_of(line));
    return true;
  });
  return rows;
}

/// What stands in the first fence, or else the whole text.
std::string_view unfenced(std::string_view text) {
  constexpr std::string_view fence = "```";
  constexpr std::string_view opening = "```tsv";
  const std::size_t begin = text.find(opening);
  if (begin == text.npos) return text;
  text.remove_prefix(begin + opening.size());
  return text.substr(0, text.find(fence));
}

/// How many of the rows are among others.
double common(const std::vector<Row>& rows, const std::vector<Row>& others) {
  return static_cast<double>(std::ranges::count_if(
      rows, [&](const Row& row) { return std::ranges::find(others, row) != others.end(); }));
}

}  // namespace

double tsv_score(std::string_view answer, std::string_view reference) {
  std::vector<Row> wanted = rows_of(reference);
  const Row header = wanted.front();
  wanted.erase(wanted.begin());
  std::vector<Row> given = rows_of(unfenced(answer));
  if (!given.empty() && given.front() == header) given.erase(given.begin());
  if (!given.empty() && given.back().size() != header.size()) given.pop_back();
  if (given.empty()) return 0;
  const double precision = common(given, wanted) / static_cast<double>(given.size());
  const double recall = common(wanted, given) / static_cast<double>(wanted.size());
  return precision + recall > 0 ? 2 * precision * recall / (precision + recall) : 0;
}

}  // namespace topkv
