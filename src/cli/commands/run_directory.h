// The output directory of a needle run: a ResultDirectory of cells.
//
//   run.json      the full configuration
//   cells.jsonl   one JSON line per finished cell, appended as it finishes
//   summary.csv, heatmap.svg, report.html   made from the cells at the end
//
// Lengths and indices are no part of the configuration that a directory belongs to: cells of more
// of them are added to those that are there.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/cli/flags/options.h"
#include "src/eval/run/needle_result.h"
#include "src/eval/run/result_directory.h"

namespace topkv::cli {

/// One thread at a time.
class RunDirectory {
 public:
  /// Throws what ResultDirectory does.
  RunDirectory(std::filesystem::path directory, const Json& configuration, bool fresh);

  const std::vector<Cell>& cells() const { return cells_; }
  /// The configuration given, with the lengths and indices that were there and are new. An index
  /// that was there under another spelling keeps that.
  const Json& configuration() const { return results_.configuration(); }
  /// index: as configuration() spells it.
  bool has(std::int64_t length, double depth, const std::string& index) const;
  /// Writes the cell before it returns. Throws FileError.
  void append(const Cell& cell);

  std::filesystem::path file(const char* name) const { return results_.file(name); }

 private:
  ResultDirectory results_;
  std::vector<Cell> cells_;
};

/// Where a run goes that was not told: out/needle-MODEL-DIGEST, another one for other settings and
/// the same for more lengths or indices.
std::filesystem::path default_directory(const Json& configuration);

/// The spelling under which `spec` is among `specs`, or spec itself.
std::string spelled_in(const std::vector<std::string>& specs, const std::string& spec);

}  // namespace topkv::cli
