// The output directory of a needle run, and its going on after an interruption.
//
//   run.json      the full configuration
//   cells.jsonl   one JSON line per finished cell, appended as it finishes
//   summary.csv, heatmap.svg   made from the cells at the end
//
// A directory belongs to one configuration; a run with another one is refused rather than mixed in.
// Lengths and indices are no part of it: cells of more of them are added to those that are there.
// Nothing in the directory changes before the first new cell is written to it.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/cli/options.h"
#include "src/eval/cell.h"

namespace topkv::cli {

/// Holds a lock on the directory, so that two runs cannot write into it at once. One thread at a
/// time.
class RunDirectory {
 public:
  /// Makes the directory, or opens what an earlier run left there. fresh: as if it held no run.
  /// Throws FileError when the directory holds another configuration (naming what differs), cells
  /// without a configuration, or a damaged line; or cannot be written; or is in use.
  RunDirectory(std::filesystem::path directory, const Json& configuration, bool fresh);
  /// Takes away what the constructor made, if no cell was written.
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;  // it owns the lock
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::vector<Cell>& cells() const { return cells_; }
  /// The configuration given, with the lengths and indices that were there and are new. An index
  /// that was there under another spelling keeps that.
  const Json& configuration() const { return configuration_; }
  /// index: as configuration() spells it.
  bool has(std::int64_t length, double depth, const std::string& index) const;
  /// Writes the cell before it returns. The first one also cuts off a last line that a killed run
  /// left incomplete, or with fresh removes the files of the earlier run. Throws FileError.
  void append(const Cell& cell);

  std::filesystem::path file(const char* name) const { return directory_ / name; }

 private:
  void make_directory();
  void open_cells();
  void load_cells();
  void merge_configuration();
  void begin();
  void clean_up() noexcept;

  std::filesystem::path directory_;
  Json configuration_;
  bool fresh_;
  std::vector<Cell> cells_;
  std::vector<std::filesystem::path> made_;  // directories, outermost first
  bool made_file_ = false;
  bool begun_ = false;
  std::int64_t kept_bytes_ = 0;  // of cells.jsonl
  int file_ = -1;
};

/// Where a run goes that was not told: out/needle-MODEL-DIGEST, another one for other settings and
/// the same for more lengths or indices.
std::filesystem::path default_directory(const Json& configuration);

/// The spelling under which `spec` is among `specs`, or spec itself.
std::string spelled_in(const std::vector<std::string>& specs, const std::string& spec);

/// The members in which two configurations differ: "kv_topk 64 there, 128 here; …".
std::string differences(const Json& there, const Json& here);

}  // namespace topkv::cli
