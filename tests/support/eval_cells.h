// Finished cells of a needle run, for tests.
#pragma once

#include <string>
#include <vector>

#include "src/eval/run/needle_result.h"

namespace topkv {

inline Cell cell_at(std::int64_t length, double depth, const std::string& index, bool found) {
  Cell cell;
  cell.length = length;
  cell.depth = depth;
  cell.index = index;
  cell.key = "quiet-river";
  cell.value = "1234567";
  cell.answer = found ? " 1234567." : " 7654321.";
  cell.found = found;
  cell.answer_tokens = 9;
  cell.decode_steps = 9;
  cell.decode_seconds = 0.5;
  cell.decode_tokens_per_second = 18;
  cell.prefill_tokens_per_second = 3000;
  cell.prefill_times = {1, 2, 3, 4};
  cell.rows_bytes = 4096 * length;
  cell.rows_per_head = 64;
  cell.version = "0.1.0";
  return cell;
}

inline std::vector<Cell> sample_cells() {
  return {cell_at(4096, 5, "exact", true), cell_at(4096, 95, "exact", false),
          cell_at(32768, 5, "exact", true), cell_at(32768, 95, "exact", true)};
}

}  // namespace topkv
