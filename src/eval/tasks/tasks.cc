#include "src/eval/tasks/tasks.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/eval/tasks/ruler.h"
#include "topkv/error.h"

namespace topkv {

std::span<const TaskName> task_names() {
  static const std::vector<TaskName> names = [] {
    std::vector<TaskName> all = {
        {"ruler",
         {"niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2",
          "niah_multikey_3", "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe"}},
        {"passkey", {"passkey"}},
        {"passkey_steps", {"passkey_steps"}},
        {"repetition", {"repetition"}},
        {"tables", {"tables_count", "tables_sum", "tables_hop"}},
        {"mrcr", {"mrcr_2", "mrcr_4", "mrcr_8"}},
        {"text2json", {"text2json"}},
        {"html_to_tsv", {"html_to_tsv"}},
        {"multineedle", {"multineedle"}},
        {"qa", {"qa"}}};
    for (const TaskName& name : std::vector<TaskName>(all)) {
      if (name.tasks.size() == 1) continue;
      for (const std::string& task : name.tasks) all.push_back({task, {task}});
    }
    return all;
  }();
  return names;
}

std::vector<std::string> parse_tasks(std::string_view list) {
  std::vector<std::string> tasks;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view name = list.substr(begin, end - begin);
    begin = end + 1;
    const auto at = std::ranges::find(task_names(), name, &TaskName::name);
    if (at == task_names().end()) {
      std::string known;
      for (const TaskName& one : task_names()) known += (known.empty() ? "" : ", ") + one.name;
      throw InvalidArgument(fmt::format(
          "'{}' is no task; expected some of {}, with commas between them", name, known));
    }
    for (const std::string& task : at->tasks) {
      if (std::ranges::find(tasks, task) == tasks.end()) tasks.push_back(task);
    }
  }
  return tasks;
}

std::vector<EvalTask> make_eval_tasks(const std::vector<std::string>& names,
                                      const TaskTokens& tokens, const TaskSources& sources) {
  const ProseSource essays(sources.essays);
  std::vector<EvalTask> known = ruler_needle_tasks(tokens, essays);
  known.push_back(ruler_vt_task(tokens));
  known.push_back(ruler_cwe_task(tokens));
  known.push_back(ruler_fwe_task(tokens));
  known.push_back(passkey_task(tokens, false));
  known.push_back(passkey_task(tokens, true));
  known.push_back(repetition_task(tokens, essays));
  std::ranges::copy(table_tasks(tokens), std::back_inserter(known));
  std::ranges::copy(mrcr_tasks(tokens), std::back_inserter(known));
  known.push_back(text2json_task(tokens, essays));
  known.push_back(html_to_tsv_task(tokens, essays));
  known.push_back(multineedle_task(tokens, essays));
  if (std::ranges::find(names, "qa") != names.end()) known.push_back(qa_task(tokens, sources));
  std::vector<EvalTask> tasks;
  for (const std::string& name : names) {
    tasks.push_back(*std::ranges::find(known, name, &EvalTask::name));
  }
  return tasks;
}

}  // namespace topkv
