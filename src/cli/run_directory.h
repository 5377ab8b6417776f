// The output directory of a needle run, and its going on after an interruption.
//
//   run.json      the full configuration
//   cells.jsonl   one JSON line per finished cell, appended as it finishes
//   summary.csv, heatmap.svg   made from the cells at the end
//
// A directory belongs to one configuration; a run with another one is refused rather than mixed in.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "src/cli/cell.h"

namespace topkv::cli {

/// Holds a lock on the directory, so that two runs cannot write into it at once. One thread at a
/// time.
class RunDirectory {
 public:
  /// Makes the directory, or opens what an earlier run left there. A last line that a killed run
  /// left incomplete is cut off. fresh: removes the files of an earlier run first.
  /// Throws FileError when the directory holds another configuration (naming what differs), cells
  /// without a configuration, or a damaged line; or cannot be written; or is in use.
  RunDirectory(std::filesystem::path directory, const Json& configuration, bool fresh);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;  // it owns the lock
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::vector<Cell>& cells() const { return cells_; }
  bool has(std::int64_t length, double depth, const std::string& index) const;
  /// Writes the cell before it returns. Throws FileError.
  void append(const Cell& cell);

  std::filesystem::path file(const char* name) const { return directory_ / name; }

 private:
  void load_cells();

  std::filesystem::path directory_;
  std::vector<Cell> cells_;
  int file_ = -1;
};

/// The members in which two configurations differ: "kv_topk 64 there, 128 here; …".
std::string differences(const Json& there, const Json& here);

}  // namespace topkv::cli
