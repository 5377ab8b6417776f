// The tasks of `topkv eval` by name, and those that are not RULER's.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "src/eval/tasks/eval_task.h"
#include "src/eval/tasks/prose.h"

namespace topkv {

/// What tasks need from outside.
struct TaskSources {
  std::string essays;                        ///< a directory of texts; empty: generated prose
  std::vector<std::filesystem::path> files;  ///< qa's text
  std::filesystem::path questions;           ///< qa's questions, JSON lines
};

/// One name, or that of several: "ruler" are eleven tasks, "tables" and "mrcr" three.
struct TaskName {
  std::string name;
  std::vector<std::string> tasks;
};
std::span<const TaskName> task_names();

/// The tasks that a list of names stands for, once each, in its order. Throws InvalidArgument
/// naming what is known.
std::vector<std::string> parse_tasks(std::string_view list);

/// The tasks of these names, as parse_tasks gives them. Throws what reading the sources does, and
/// InvalidArgument when a task lacks its own.
std::vector<EvalTask> make_eval_tasks(const std::vector<std::string>& names,
                                      const TaskTokens& tokens, const TaskSources& sources);

/// A number hidden in noise (Mohtashami & Jaggi 2023, Landmark Attention), at a random depth. With
/// steps the question is fed as decode steps (Tang et al. 2024, Quest); the texts are the same.
EvalTask passkey_task(const TaskTokens& tokens, bool steps);

/// A passage of the context, of which the beginning is given, is to be repeated (Ribar et al. 2024,
/// SparQ Attention, section 4): 128 characters are given, 256 are compared, up to whole words.
EvalTask repetition_task(const TaskTokens& tokens, const ProseSource& essays);

/// Questions about generated tables whose answers need many rows, or two of them: tables_count,
/// tables_sum, tables_hop.
std::vector<EvalTask> table_tasks(const TaskTokens& tokens);

/// OpenAI's MRCR (Vodrahalli et al. 2024, Michelangelo, arXiv 2409.12640; openai/mrcr): mrcr_2,
/// mrcr_4 and mrcr_8. A conversation has so many equal requests among others, and the i-th reply to
/// them is to be repeated, behind a random string. Requests and replies are generated.
std::vector<EvalTask> mrcr_tasks(const TaskTokens& tokens);

/// People whose trade and town are spread evenly over prose; all are to be listed in JSON. After
/// Text2JSON (Bocharnikov et al. 2026, arXiv 2604.08426), with its score and a text of our own.
EvalTask text2json_task(const TaskTokens& tokens, const ProseSource& essays);

/// The catalogue of a museum as a web page, its entries spread evenly over prose; those on display
/// are to be written as tab-separated values. After LongProc's HTML to TSV (Ye et al. 2025, arXiv
/// 2501.05414), with its score and a page of our own.
EvalTask html_to_tsv_task(const TaskTokens& tokens, const ProseSource& essays);

/// The values of one key in RULER's needles, which are spread evenly over prose, as those of
/// NeedleBench's multi-needle retrieval are (Li et al. 2024, arXiv 2407.11963). All are asked for
/// at once, in their order.
EvalTask multineedle_task(const TaskTokens& tokens, const ProseSource& essays);

/// A user's questions about a user's files, in RULER's template for questions about documents. The
/// files are read now. Throws FileError, or InvalidArgument when no question can be asked.
EvalTask qa_task(const TaskTokens& tokens, const TaskSources& sources);

}  // namespace topkv
