// The work of a needle run: contexts are prefilled and indexed where cells are missing, and every
// missing cell is asked in a session of its own.
#pragma once

#include <memory>
#include <optional>

#include "src/cli/commands/run_directory.h"
#include "src/cli/flags/needle_options.h"
#include "src/cli/terminal/progress_bar.h"
#include "src/eval/tasks/needle_context.h"
#include "topkv/model.h"

namespace topkv::cli {

/// Cells of the plan that the directory, which may hold others, does not have.
std::int64_t missing_cells(const NeedlePlan& plan, const RunDirectory& directory);

/// Throws Interrupted after Ctrl-C; finished cells are in the directory by then.
class NeedleRun {
 public:
  /// All arguments are borrowed.
  NeedleRun(const Model& model, const NeedleFlags& flags, const NeedlePlan& plan,
            RunDirectory& directory, ProgressBar& progress);

  void run();

  /// Steps of all sessions so far that decoded one token.
  struct Profile {
    std::vector<StepTimes> layers;
    std::int64_t steps = 0;
    double seconds = 0;
  };
  const Profile& profile() const { return profile_; }

 private:
  struct Prefilled;

  void run_context(std::int64_t length, const std::vector<double>& depths, std::uint64_t seed);
  Prefilled prefill(std::int64_t length, const std::vector<double>& depths, std::uint64_t seed);
  void ask_all(const Prefilled& prefilled, const std::string& index);
  Cell ask(const std::shared_ptr<const Context>& context, const std::string& index,
           const PlacedNeedle& placed);
  std::optional<double> measure_recall(const std::shared_ptr<const Context>& context,
                                       const std::string& index,
                                       const std::vector<Token>& question) const;
  bool missing(std::int64_t length, double depth) const;
  std::vector<Token> question_of(const Needle& needle) const;
  void check_reach() const;

  const Model& model_;
  const NeedleFlags& flags_;
  const NeedlePlan& plan_;
  RunDirectory& directory_;
  ProgressBar& progress_;
  PrefillOptions prefill_options_;
  std::vector<Token> beginning_;
  Profile profile_;
};

}  // namespace topkv::cli
