// Tasks whose texts are prose, some with units such as records, spread evenly over it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/eval/tasks/eval_task.h"
#include "src/eval/tasks/prose.h"

namespace topkv {

/// A task that calls `make` for each sample. It owns what it is given.
EvalTask prose_task(const char* name, Scoring scoring, const TaskTokens& tokens,
                    const ProseSource& essays,
                    EvalSample (*make)(const SampleOrder&, const TaskTokens&, const ProseSource&));

/// The text of a context around these sentences, some of which are the units.
using FrameText = std::function<std::string(const std::string& sentences)>;

/// Sets sample->context: `units` in the middle of equal parts of as many words of prose as the
/// length has room for, beside the sample's question and answer. sentence: how one of the prose is
/// written. Throws InvalidArgument when not even a word for each unit fits.
void fill_with_prose(EvalSample* sample, const SampleOrder& order, const TaskTokens& tokens,
                     const ProseSource& essays, const std::vector<std::string>& units,
                     const FrameText& frame,
                     const std::function<std::string(std::string)>& sentence = {});

}  // namespace topkv
