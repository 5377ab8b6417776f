// One answer of `topkv eval`, as kept in samples.jsonl.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace topkv {

/// What one method with one budget answered to one sample.
struct EvalResult {
  // Which answer it is.
  std::string task;
  std::int64_t length = 0;  ///< of context, question and answer together, as --lengths had it
  std::int64_t sample = 0;  ///< from 0
  std::string method;       ///< as given
  std::optional<std::int64_t> budget = {};  ///< rows of a query head; none: all rows

  // What was asked and answered.
  std::string question;
  std::vector<std::string> references;
  std::string answer;  ///< the text generated, as it came
  /// Between 0 and 1; of repetition a count of characters. None where there are no references.
  std::optional<double> score = {};
  std::optional<double> f1 = {};  ///< SQuAD's, of qa
  std::string haystack;           ///< what the answer was hidden in

  // Sizes in tokens.
  std::int64_t context_tokens = 0;
  std::int64_t question_tokens = 0;
  std::int64_t answer_tokens = 0;
  /// Rows attended beyond window and sinks, per token, layer and query head, on average.
  double rows_per_head = 0;
  /// Of the context, per token of question and answer, sinks and window among them; none where an
  /// index does not tell. See bytes_read.h.
  std::optional<std::int64_t> bytes_read = {};

  // Cost: of the context, the same in all answers from it, and of the answer.
  double prefill_seconds = 0;
  double question_seconds = 0;
  double decode_seconds = 0;
  std::int64_t decode_steps = 0;  ///< tokens decoded in decode_seconds
  double seconds = 0;             ///< session from start to end

  // What it was run with.
  std::string index;
  std::string tail;
  std::int64_t window = 0;
  std::int64_t sinks = 0;
  std::int64_t dense_layers = 0;
  std::string select;  ///< "query_head" or "group"
  std::uint64_t seed = 0;
  std::string device;
  std::string version;
};

/// All members under their names; null for none.
nlohmann::ordered_json to_json(const EvalResult& result);

/// Throws nlohmann::json::exception when a member is missing or of another type.
EvalResult eval_result_from_json(const nlohmann::ordered_json& json);

}  // namespace topkv
