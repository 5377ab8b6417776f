#include "src/cli/commands/prefill_step.h"

#include <fmt/format.h>

#include "src/cli/terminal/text_layout.h"
#include "src/core/text/format_numbers.h"
#include "src/core/threads/stopwatch.h"

namespace topkv::cli {
namespace {

constexpr double long_wait = 60;  // seconds

/// In window mode each token attends as many as the others.
Cost cost_of(Prefill mode) { return mode == Prefill::window ? Cost::steady : Cost::grows; }

/// Once it is known that a dense prefill on the host takes long: that there is another way.
class QuickerWay {
 public:
  QuickerWay(const Model& model, const PrefillOptions& options, ProgressBar& progress)
      : there_is_(!model.device().is_cuda() && options.attention.mode == Prefill::dense),
        progress_(progress) {}

  void tell() {
    const std::optional<double> left = progress_.seconds_left();
    if (!there_is_ || !left || *left < long_wait) return;
    there_is_ = false;
    progress_.note(fmt::format(
        "dense prefill takes about {} more: each token attends to all tokens before it; --prefill "
        "window is far faster: each token attends to the first and the latest tokens only",
        format_seconds(*left)));
  }

 private:
  bool there_is_;
  ProgressBar& progress_;
};

Prefilled without_index(const Model& model, PrefillOptions options,
                        const std::vector<Token>& tokens, ProgressBar& progress) {
  Prefilled prefilled;
  if (tokens.empty()) {
    prefilled.context =
        ContextBuilder(
            model.config().attention,
            {.capacity = 1, .dtype = options.kv_dtype, .memory_budget = options.memory_budget})
            .freeze();
    return prefilled;
  }
  QuickerWay quicker(model, options, progress);
  const Stopwatch watch;
  prefilled.context = model.prefill(
      tokens, options,
      [&, prefill = progress.callback("prefill", cost_of(options.attention.mode)),
       index = progress.callback("index")](const Progress& done) {
        if (done.stage == "index") return index(done);
        prefill(done);
        quicker.tell();
      },
      &prefilled.times);
  prefilled.seconds = watch.seconds() - prefilled.times.indexing;
  return prefilled;
}

}  // namespace

Prefilled prefill(const Model& model, const RetrievalFlags& retrieval, const PrefillFlags& prefill,
                  const std::vector<Token>& tokens, ProgressBar& progress) {
  const std::string& index = retrieval.indices.front();
  PrefillOptions options = prefill_options(prefill, retrieval);
  if (index != "exact") options.indices = retrieval.indices;
  Prefilled prefilled = without_index(model, std::move(options), tokens, progress);
  const Stopwatch indexing;
  // An index over no keys takes no time.
  prefilled.context = prefilled.context->ready_for(
      retrieval_options(retrieval, model.config().attention.layers, index, 1),
      tokens.empty() ? ProgressFn() : progress.index_callback("index"), model.device());
  prefilled.times.indexing += indexing.seconds();
  progress.finish();
  return prefilled;
}

}  // namespace topkv::cli
