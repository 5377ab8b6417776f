// RULER's synthetic tasks (Hsieh et al. 2024, "RULER: What's the Real Context Size of Your
// Long-Context Language Models?"), with the templates, numbers and scores of NVIDIA/RULER:
// scripts/synthetic.yaml, scripts/data/synthetic/*.py, scripts/eval/synthetic/constants.py.
//
// A length is that of a model's window: context, question, beginning of the answer and the tokens
// that are kept for generating. Contexts are filled unit by unit (a sentence of noise, a needle, a
// word), as RULER's binary search does; each sample for itself.
//
// What differs is in docs/reference/eval.md: essays are given or replaced by generated prose, a
// needle's distractors never repeat its key or value, and fwe keeps its 50 tokens.
#pragma once

#include <vector>

#include "src/eval/tasks/eval_task.h"
#include "src/eval/tasks/prose.h"

namespace topkv {

/// niah_single_1 to _3, niah_multikey_1 to _3, niah_multivalue, niah_multiquery.
std::vector<EvalTask> ruler_needle_tasks(const TaskTokens& tokens, const ProseSource& essays);
/// Variable tracking: one chain of four hops in noise, behind an example.
EvalTask ruler_vt_task(const TaskTokens& tokens);
/// Common words extraction: ten words that appear 30 times among words that appear 3 times, behind
/// an example (lengths below 4096: 6 times and once).
EvalTask ruler_cwe_task(const TaskTokens& tokens);
/// Frequent words extraction: the three most frequent of coded words, whose counts follow a Zipf
/// distribution with exponent 2.
EvalTask ruler_fwe_task(const TaskTokens& tokens);

/// RULER's noise.
std::string ruler_noise();

}  // namespace topkv
