// The engine of `topkv eval` and `topkv needle`. Samples with one context are asked together: the
// context is prefilled once, each method's indices are built over it in turn, and every missing
// answer is given in a session of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/eval/run/answer.h"
#include "src/eval/run/eval_directory.h"
#include "src/eval/run/method.h"
#include "src/eval/tasks/eval_task.h"
#include "topkv/model.h"

namespace topkv {

struct EvalPlan {
  std::vector<EvalTask> tasks;
  std::vector<std::int64_t> lengths;  ///< ascending
  std::vector<Method> methods = {};
  std::vector<std::int64_t> budgets = {};  ///< ascending
  std::int64_t samples = 0;                ///< of each task and length, at most
  bool all_questions = false;              ///< all samples of tasks that have a number of them
  std::uint64_t seed = 0;
  PrefillOptions prefill = {};
  SamplingOptions sampling = {};
  /// Also measures how many rows of exact search an index finds, in a second session.
  bool recall = false;
  std::string methods_flag;  ///< the flag that names methods, for errors
  std::string version;       ///< of topkv, for the record
};

/// How a run reports to its caller. All functions are called on the calling thread.
struct EvalHooks {
  /// Returns the callback for the reports of one stage, such as "128K prefill". answers: of the
  /// whole run, done and missing; changes while the run lives. A callback may throw, which ends
  /// the run: the folder has the answers that are done.
  std::function<ProgressFn(const std::string& stage, const Progress& answers)> stage;
  /// A line about a long context that was prefilled. May be empty.
  std::function<void(const std::string& line)> note = {};
  /// Called after each answer, with its session. May be empty.
  std::function<void(const Session& session, const Answer& answer)> answered = {};
};

/// All arguments are borrowed. One thread at a time.
class EvalRun {
 public:
  EvalRun(const Model& model, const EvalPlan& plan, EvalDirectory& directory, EvalHooks hooks);

  /// Throws InvalidArgument for a length that is too short for a task, and for an index that cannot
  /// be built over that many keys. No model is run.
  void check() const;
  /// Answers of the plan that the folder does not have. It may have others.
  std::int64_t missing() const;
  void run();

 private:
  struct Sample {
    std::int64_t number = 0;
    EvalSample made;
    std::vector<Token> question;
  };
  struct Prefilled {
    std::vector<Token> tokens;
    std::shared_ptr<const Context> context;
    PrefillAttention attention = {};  ///< with the mode that it was read in
    double seconds = 0;               ///< without indices
    ForwardTimes times = {};
  };
  /// A context with the indices of one method.
  struct Indexed {
    std::shared_ptr<const Context> context;
    double build_seconds = 0;
    std::int64_t index_bytes = 0;
  };

  std::int64_t samples_of(const EvalTask& task) const;
  std::vector<EvalResult> missing_of(const EvalTask& task, std::int64_t length, std::int64_t number,
                                     const Method& method) const;
  std::int64_t missing_of(const EvalTask& task, std::int64_t length, std::int64_t number) const;
  EvalSample make(const EvalTask& task, std::int64_t length, std::int64_t number) const;
  void check_keys(const Method& method, std::int64_t keys) const;
  void run_samples(const EvalTask& task, std::int64_t length, const std::vector<Sample>& samples);
  void prefill(const EvalTask& task, std::int64_t length, const std::vector<Sample>& samples);
  Indexed with_indices(const Method& method, std::int64_t length) const;
  void answer(const EvalTask& task, const Sample& sample, const Method& method,
              const Indexed& indexed, EvalResult result, const std::function<void()>& asking);
  std::optional<double> measure_recall(const std::shared_ptr<const Context>& context,
                                       RetrievalOptions options,
                                       const std::vector<Token>& question) const;

  const Model& model_;
  const EvalPlan& plan_;
  EvalDirectory& directory_;
  EvalHooks hooks_;
  Progress answers_ = {};
  Prefilled prefilled_;  // the last one: samples of several tasks may share it
};

}  // namespace topkv
