// The results of `topkv needle` as cells.jsonl keeps them: the cells of a grid of depths and
// lengths, for each index. docs/reference/eval.md lists their fields.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/eval/run/eval_result.h"

namespace topkv {

/// The members that cells.jsonl keeps, under the names that they have there; null for none.
/// REQUIRES: a result of the needle grid, with a depth and one reference.
nlohmann::ordered_json to_cell(const EvalResult& result);

/// Throws nlohmann::json::exception when a member is missing or of another type.
EvalResult result_from_cell(const nlohmann::ordered_json& cell);

/// Sorted as people read them: by index in the order given, then length, then depth.
std::vector<EvalResult> in_grid_order(std::vector<EvalResult> results,
                                      const std::vector<std::string>& indices);

}  // namespace topkv
