#include "src/cli/commands/answer_samples.h"

#include <exception>
#include <utility>

#include "topkv/generation.h"

namespace topkv::cli {

std::vector<GenerateResult> generate_samples(const Model& model, Session& session,
                                             std::span<const Token> prompt,
                                             const GenerateOptions& options,
                                             std::span<AnswerStream> streams,
                                             const std::function<void()>& on_begin) {
  GenerateOptions each = options;
  double reading = 0;
  // All but the last token are read once: that one's logits are what each begins with.
  const std::span<const Token> shared = prompt.first(prompt.empty() ? 0 : prompt.size() - 1);
  if (streams.size() > 1 && !shared.empty()) {
    reading = model.generate(session, shared, {.max_tokens = 0, .progress = options.progress})
                  .prompt_seconds;
    each.before.insert(each.before.end(), shared.begin(), shared.end());
    prompt = prompt.last(1);
  }
  std::vector<Session> forks;
  for (std::size_t i = 1; i < streams.size(); ++i) forks.push_back(session.fork());
  GenerationBatch batch(model);
  for (std::size_t i = 0; i < streams.size(); ++i) {
    AnswerStream& stream = streams[i];
    if (options.logprobs >= 0)
      each.on_logprobs = [&stream](const TokenLogprobs& of) { stream.take(of); };
    batch.add(
        i == 0 ? session : forks[i - 1], prompt, each,
        [&stream, &on_begin, begins = i == 0](Token token) mutable {
          if (std::exchange(begins, false)) on_begin();
          return stream.take(token);
        },
        [&stream](std::string_view piece) { return stream.take(piece); });
    ++each.sampling.seed;
  }
  std::vector<GenerateResult> results(streams.size());
  while (batch.size() > 0) {
    for (GenerationBatch::Finished& one : batch.step()) {
      if (one.error) std::rethrow_exception(one.error);
      results[static_cast<std::size_t>(one.id)] = std::move(one.result);
    }
  }
  results[0].prompt_seconds += reading;
  results[0].times = batch.times();
  return results;
}

}  // namespace topkv::cli
