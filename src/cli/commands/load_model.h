// Loads the model of a command, once it is known to fit, and what its answers follow.
#pragma once

#include <memory>
#include <optional>

#include "src/cli/flags/answer_flags.h"
#include "src/cli/flags/options.h"
#include "src/cli/terminal/progress_bar.h"
#include "topkv/draft_model.h"
#include "topkv/grammar.h"
#include "topkv/model.h"

namespace topkv::cli {

/// Loads the model that the flags name. For a CUDA device, it first prints the plan of a prefill
/// and a session to standard error. It reads files alone until then.
///
/// length: the length that keys are rotated for (LoadOptions::length); 0: the model's own.
///
/// turns: how sessions over it read turns, whose memory the plan counts.
///
/// drafts: of the model that is to draft for it, whose memory the plan counts.
///
/// progress: shows the conversion of weights, and the model's warnings as lines of their own. It
/// must outlive the model. Warnings may come from many threads.
///
/// Before anything is loaded, throws OutOfMemory when the plan does not fit, with the smallest
/// change that would, and Unsupported for a prefill that the device does not have. Throws
/// UsageError for a draft model that the device does not let draft. Throws what Model::load throws.
Model load_model(const ModelFlags& flags, const Device& device, const PrefillFlags& prefill,
                 const RetrievalFlags& retrieval, ProgressBar& progress, std::int64_t length = 0,
                 const std::optional<PrefillAttention>& turns = {}, const DraftFlags& drafts = {});

/// Loads the model that drafts for another one, on the other model's device. Null: the flags name
/// none. progress: shows its warnings, and must outlive it.
///
/// Throws what Model::load and DraftModel's constructor throw.
std::shared_ptr<const DraftModel> load_draft_model(const DraftFlags& flags, const Model& of,
                                                   ProgressBar& progress);

/// Returns the grammar of the file of --json-schema; null: there is none. The model outlives it.
/// Throws FileError for a file that cannot be read or is no schema that topkv takes.
std::shared_ptr<const Grammar> answer_grammar(const AnswerFlags& flags, const Model& model);

}  // namespace topkv::cli
