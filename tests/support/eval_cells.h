// Finished cells of a needle run, for tests.
#pragma once

#include <string>
#include <vector>

#include "src/eval/run/eval_result.h"
#include "src/eval/tasks/needle_grid.h"

namespace topkv {

inline EvalResult cell_at(std::int64_t length, double depth, const std::string& index, bool found) {
  EvalResult cell;
  cell.task = needle_grid_name;
  cell.length = length;
  cell.depth = depth;
  cell.method = index;
  cell.key = "quiet-river";
  cell.references = {"1234567"};
  cell.answer = found ? " 1234567." : " 7654321.";
  cell.score = found ? 1 : 0;
  cell.context_tokens = 3000;
  cell.answer_tokens = 9;
  cell.decode_steps = 9;
  cell.decode_seconds = 0.5;
  cell.prefill_seconds = 1;
  cell.prefill_times = {1, 2, 3, 4};
  cell.rows_bytes = 4096 * length;
  cell.rows_per_head = 64;
  cell.version = "0.1.0";
  return cell;
}

inline std::vector<EvalResult> sample_cells() {
  return {cell_at(4096, 5, "exact", true), cell_at(4096, 95, "exact", false),
          cell_at(32768, 5, "exact", true), cell_at(32768, 95, "exact", true)};
}

}  // namespace topkv
