// One answer of an evaluation: a row of samples.jsonl (`topkv eval`) or of cells.jsonl (`topkv
// needle`). A file keeps the members that it names; in a row that was read, the others are empty.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "topkv/model.h"

namespace topkv {

/// What one method with one budget answered to one sample.
struct EvalResult {
  // Which answer it is.
  std::string task;
  std::int64_t length = 0;  ///< of context, question and answer together, as --lengths had it
  std::int64_t sample = 0;  ///< from 0; 0 where samples have depths
  std::optional<double> depth = {};  ///< of a needle, percent of the context; none: of no grid
  std::string method;                ///< as given
  /// Rows of a query head; none: all rows, or what the method says.
  std::optional<std::int64_t> budget = {};

  // What was asked and answered.
  std::string question;
  std::vector<std::string> references;
  std::string answer;  ///< the text generated, as it came
  /// Between 0 and 1; of repetition a count of characters. None where there are no references.
  std::optional<double> score = {};
  std::optional<double> f1 = {};  ///< SQuAD's, of qa
  std::string haystack;           ///< what the answer was hidden in
  std::string key;                ///< of a needle: the subject of its fact
  PositionRange needle = {};      ///< of a needle: its tokens in the context

  // Sizes in tokens.
  std::int64_t context_tokens = 0;
  std::int64_t question_tokens = 0;
  std::int64_t answer_tokens = 0;
  /// Rows attended beyond window and sinks, per token, layer and query head, on average.
  double rows_per_head = 0;
  /// Of the context, per token of question and answer, sinks and window among them; none where an
  /// index does not tell. See bytes_read.h.
  std::optional<std::int64_t> bytes_read = {};
  /// Share of exact search's rows that the index found for the question's queries; none when it was
  /// not measured, or nothing had to be searched.
  std::optional<double> recall = {};

  // Cost of the context, the same in all answers from it.
  double prefill_seconds = 0;  ///< without indices
  ForwardTimes prefill_times = {};
  double index_build_seconds = 0;  ///< that index and tail added before the first question
  std::int64_t index_bytes = 0;
  std::int64_t rows_bytes = 0;

  // Cost of the answer.
  double question_seconds = 0;
  double decode_seconds = 0;
  std::int64_t decode_steps = 0;       ///< tokens decoded in decode_seconds
  ForwardTimes answer_times = {};      ///< question and decoding
  double seconds = 0;                  ///< session from start to end
  std::int64_t peak_memory_bytes = 0;  ///< of the host
  std::int64_t gpu_peak_bytes = 0;     ///< of the device, as topkv accounts for it

  // What it was run with.
  std::string index;
  std::string tail;
  std::string topk;  ///< rows of a query head as given, of a method without budgets
  std::int64_t window = 0;
  std::int64_t sinks = 0;
  std::int64_t dense_layers = 0;
  std::string select;  ///< "query_head" or "group"
  /// Mode in which the context was read (name_of(Prefill)); empty in answers of version 0.1.
  std::string prefill;
  std::uint64_t seed = 0;
  std::string device;
  std::string version;

  bool found() const { return score.value_or(0) > 0; }
  double prefill_tokens_per_second() const;
  /// None for an answer of one token.
  std::optional<double> decode_tokens_per_second() const;
};

/// The members that samples.jsonl keeps, under their names; null for none.
nlohmann::ordered_json to_json(const EvalResult& result);

/// Throws nlohmann::json::exception when a member is missing or of another type.
EvalResult eval_result_from_json(const nlohmann::ordered_json& json);

}  // namespace topkv
