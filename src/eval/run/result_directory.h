// A folder that holds the results of one run and its going on after an interruption.
//
//   run.json       the full configuration
//   a file of JSON lines, one for each result, appended as it is there
//   other files    made from the lines at the end
//
// A folder belongs to one configuration; a run with another one is refused rather than mixed in,
// but for lists that may grow. Nothing in the folder changes before the first new line is written.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace topkv {

/// What is in the folder, and what of a configuration may differ.
struct ResultLayout {
  std::string lines;              ///< name of the file of lines
  std::string line_is;            ///< "a cell"
  std::vector<std::string> made;  ///< names of files that are made from them
  /// Throws nlohmann::json::exception for what is no such line.
  std::function<void(const nlohmann::ordered_json&)> check;
  /// The configuration of both: `here`, with what `there` has of lists that may grow. Both are
  /// objects. May throw nlohmann::json::exception when `there` is not what it must be.
  std::function<nlohmann::ordered_json(const nlohmann::ordered_json& there,
                                       const nlohmann::ordered_json& here)>
      merge;
  /// Members that may grow: they are not compared.
  std::vector<std::string> growing;
};

/// Holds a lock on the folder, so that two runs cannot write into it at once. One thread at a time.
class ResultDirectory {
 public:
  using Json = nlohmann::ordered_json;

  /// Makes the folder, or opens what an earlier run left there. fresh: as if it held no run.
  /// Throws FileError when it holds another configuration (naming what differs), lines without a
  /// configuration, or a damaged line; or cannot be written; or is in use.
  ResultDirectory(std::filesystem::path directory, Json configuration, bool fresh,
                  ResultLayout layout);
  /// Takes away what the constructor made, if no line was written.
  ~ResultDirectory();
  ResultDirectory(const ResultDirectory&) = delete;  // it owns the lock
  ResultDirectory& operator=(const ResultDirectory&) = delete;

  /// Of earlier runs, when it was opened.
  const std::vector<Json>& lines() const { return lines_; }
  /// The one given, merged with the one that was there.
  const Json& configuration() const { return configuration_; }
  /// Writes the line before it returns. The first one also cuts off a last line that a killed run
  /// left incomplete, or with fresh removes the files of the earlier run. Throws FileError.
  void append(const Json& line);

  std::filesystem::path file(const std::string& name) const { return directory_ / name; }

 private:
  void make_directory();
  void open_lines();
  void load_lines();
  void merge_configuration();
  void begin();
  void clean_up() noexcept;

  std::filesystem::path directory_;
  Json configuration_;
  bool fresh_;
  ResultLayout layout_;
  std::vector<Json> lines_;
  std::vector<std::filesystem::path> made_;  // folders, outermost first
  bool made_file_ = false;
  bool begun_ = false;
  std::int64_t kept_bytes_ = 0;  // of the lines
  int file_ = -1;
};

/// Where a run goes that was not told: out/PREFIX-MODEL-DIGEST, another one for other settings and
/// the same for more of what may grow. The configuration names the model's path.
std::filesystem::path default_result_directory(std::string_view prefix,
                                               const nlohmann::ordered_json& configuration,
                                               const std::vector<std::string>& growing);

/// The members in which two configurations differ: "kv_topk 64 there, 128 here; …".
std::string differences(const nlohmann::ordered_json& there, const nlohmann::ordered_json& here);

}  // namespace topkv
