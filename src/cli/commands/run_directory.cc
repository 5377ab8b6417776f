#include "src/cli/commands/run_directory.h"

#include <algorithm>
#include <utility>

namespace topkv::cli {
namespace {

// Lists that may grow in a directory: each length and index has cells of its own.
const std::vector<std::string> growing_members = {"lengths", "kv_index"};

Json merged(const Json& there, const Json& here) {
  Json merged = here;
  if (merged.contains("lengths")) {
    auto lengths = there.at("lengths").get<std::vector<std::int64_t>>();
    for (const Json& length : here.at("lengths")) lengths.push_back(length);
    std::sort(lengths.begin(), lengths.end());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
    merged["lengths"] = lengths;
  }
  if (merged.contains("kv_index")) {
    auto specs = there.at("kv_index").get<std::vector<std::string>>();
    for (const std::string spec : here.at("kv_index")) {
      if (spelled_in(specs, spec) == spec &&
          std::find(specs.begin(), specs.end(), spec) == specs.end()) {
        specs.push_back(spec);
      }
    }
    merged["kv_index"] = specs;
  }
  return merged;
}

ResultLayout layout() {
  return {.lines = "cells.jsonl",
          .line_is = "a cell",
          .made = {"summary.csv", "heatmap.svg", "report.html"},
          .check = [](const Json& line) { cell_from_json(line); },
          .merge = merged,
          .growing = growing_members};
}

}  // namespace

std::string spelled_in(const std::vector<std::string>& specs, const std::string& spec) {
  const auto same = std::find_if(specs.begin(), specs.end(), [&](const std::string& other) {
    return other == spec || full_spec(other) == full_spec(spec);
  });
  return same == specs.end() ? spec : *same;
}

std::filesystem::path default_directory(const Json& configuration) {
  return default_result_directory("needle", configuration, growing_members);
}

RunDirectory::RunDirectory(std::filesystem::path directory, const Json& configuration, bool fresh)
    : results_(std::move(directory), configuration, fresh, layout()) {
  for (const Json& line : results_.lines()) cells_.push_back(cell_from_json(line));
}

bool RunDirectory::has(std::int64_t length, double depth, const std::string& index) const {
  return std::any_of(cells_.begin(), cells_.end(), [&](const Cell& cell) {
    return cell.length == length && cell.depth == depth && cell.index == index;
  });
}

void RunDirectory::append(const Cell& cell) {
  results_.append(to_json(cell));
  cells_.push_back(cell);
}

}  // namespace topkv::cli
