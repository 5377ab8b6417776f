// One cell of the needle grid, as kept in cells.jsonl.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "topkv/model.h"

namespace topkv {

/// One question asked of one context through one index.
struct Cell {
  // Which cell it is.
  std::int64_t length = 0;  ///< as -c had it
  double depth = 0;         ///< percent asked for with --depths
  std::string index;        ///< spec string as given

  // What was asked and answered.
  std::string key;
  std::string value;
  std::string answer;  ///< the text generated, as it came
  bool found = false;

  // Sizes in tokens, positions as token numbers of the context.
  std::int64_t context_tokens = 0;  ///< prefilled: length, less what the last sentence left free
  std::int64_t needle_begin = 0;
  std::int64_t needle_end = 0;
  std::int64_t question_tokens = 0;
  std::int64_t answer_tokens = 0;
  /// Rows attended beyond window and sinks, per token, layer and query head, on average.
  double rows_per_head = 0;
  /// With --kv-recall: share of exact search's rows that the index found for the question's
  /// queries; none when it was not measured, or nothing had to be searched.
  std::optional<double> recall = {};

  // Cost of the context, the same in all cells that it served.
  double prefill_seconds = 0;
  double prefill_tokens_per_second = 0;
  ForwardTimes prefill_times = {};
  double index_build_seconds = 0;  ///< time to the first question that the index added
  std::int64_t index_bytes = 0;
  std::int64_t rows_bytes = 0;

  // Cost of the answer.
  double question_seconds = 0;
  std::int64_t decode_steps = 0;  ///< tokens decoded in decode_seconds
  double decode_seconds = 0;
  std::optional<double> decode_tokens_per_second = {};  ///< none for an answer of one token
  ForwardTimes answer_times = {};                       ///< question and decoding
  double seconds = 0;                                   ///< session from start to end
  std::int64_t peak_memory_bytes = 0;                   ///< of the host
  std::int64_t gpu_peak_bytes = 0;                      ///< of the device, as topkv accounts for it

  // What it was run with.
  std::string device;
  std::string kv_tail;  ///< "none", or the index that stands for rows that were not found
  std::string kv_topk;
  std::int64_t kv_window = 0;
  std::int64_t kv_sinks = 0;
  std::uint64_t seed = 0;
  std::string version;
};

/// All members under their names; null for none.
nlohmann::ordered_json to_json(const Cell& cell);

/// Throws nlohmann::json::exception when a member is missing or of another type.
Cell cell_from_json(const nlohmann::ordered_json& json);

/// Sorted as people read them: by index in the order given, then length, then depth.
std::vector<Cell> in_grid_order(std::vector<Cell> cells, const std::vector<std::string>& indices);

}  // namespace topkv
