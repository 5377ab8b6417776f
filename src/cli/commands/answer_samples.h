// Several answers to one prompt, which is read once.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "src/cli/commands/answer_stream.h"
#include "topkv/model.h"

namespace topkv::cli {

/// As many as there are streams, in joint steps: with the seeds of options.sampling.seed and on.
/// The first is the session's own, the others are of forks of it; on_begin is called as that has
/// its first token. Throws what Model::generate throws.
std::vector<GenerateResult> generate_samples(const Model& model, Session& session,
                                             std::span<const Token> prompt,
                                             const GenerateOptions& options,
                                             std::span<AnswerStream> streams,
                                             const std::function<void()>& on_begin);

}  // namespace topkv::cli
