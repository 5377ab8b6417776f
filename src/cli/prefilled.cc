#include "src/cli/prefilled.h"

#include "src/core/stopwatch.h"

namespace topkv::cli {
namespace {

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
  const Stopwatch watch;
  prefilled.context = model.prefill(
      tokens, options,
      [&, prefill = progress.callback("prefill"), index = progress.callback("index")](
          const Progress& done) { (done.stage == "index" ? index : prefill)(done); },
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
  // An empty context has none yet, and nothing to tell of them.
  const auto told = [&](const char* title) {
    return tokens.empty() ? ProgressFn() : progress.callback(title);
  };
  if (index != "exact")
    prefilled.context = prefilled.context->with_index(index, told("index"), model.device());
  prefilled.context = with_tail(prefilled.context, tail_beside(retrieval.tail, index), told("tail"),
                                model.device());
  prefilled.times.indexing += indexing.seconds();
  progress.finish();
  return prefilled;
}

}  // namespace topkv::cli
