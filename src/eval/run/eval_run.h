// The work of an evaluation: where answers are missing, a sample's context is prefilled once, the
// indices of all methods are built over it, and each method with each budget answers in a session
// of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/eval/run/eval_directory.h"
#include "src/eval/run/method.h"
#include "src/eval/tasks/eval_task.h"
#include "topkv/model.h"

namespace topkv {

struct EvalPlan {
  std::vector<EvalTask> tasks;
  std::vector<std::int64_t> lengths;  ///< ascending
  std::vector<Method> methods;
  std::vector<std::int64_t> budgets;  ///< ascending
  std::int64_t samples = 0;           ///< of each task and length, where there are so many
  bool all_questions = false;         ///< of qa all, however many
  std::uint64_t seed = 0;
  PrefillOptions prefill = {};
  std::string version;  ///< of topkv, for the record
};

/// How a run speaks with whoever runs it.
struct EvalHooks {
  /// Told answers done of those that were missing, and often in between; may throw, which ends the
  /// run: answers so far are in the folder.
  ProgressFn progress;
  /// A line about a long context that was read.
  std::function<void(const std::string& line)> note;
};

/// All arguments are borrowed. One thread at a time.
class EvalRun {
 public:
  EvalRun(const Model& model, const EvalPlan& plan, EvalDirectory& directory, EvalHooks hooks);

  /// Throws InvalidArgument where a length is too short for a task, or an index cannot be built
  /// over so many keys: before any of the work.
  void check() const;
  /// Answers of the plan that the folder, which may hold others, does not have.
  std::int64_t missing() const;
  void run();

 private:
  /// A sample in work.
  struct Sample {
    EvalSample made;
    std::vector<Token> question;
  };

  std::int64_t samples_of(const EvalTask& task) const;
  std::vector<EvalResult> missing_of(const EvalTask& task, std::int64_t length, std::int64_t number,
                                     const Method& method) const;
  EvalSample make(const EvalTask& task, std::int64_t length, std::int64_t number) const;
  void run_sample(const EvalTask& task, std::int64_t length, std::int64_t number);
  void prefill(const EvalTask& task, const EvalSample& sample);
  void answer(const EvalTask& task, const Sample& sample, const Method& method,
              const std::shared_ptr<const Context>& context, EvalResult result);
  void tell(std::int64_t more);

  const Model& model_;
  const EvalPlan& plan_;
  EvalDirectory& directory_;
  EvalHooks hooks_;
  Progress progress_ = {};
  // The context that was read last: questions about files share theirs.
  std::vector<Token> tokens_;
  std::shared_ptr<const Context> context_;
  double prefill_seconds_ = 0;
};

}  // namespace topkv
