#include "src/eval/run/eval_result.h"

#include <string_view>

#include "src/core/format/json_null.h"

namespace topkv {
namespace {

using Json = nlohmann::ordered_json;

/// Calls visit(name, member) for all members but the optional ones.
template <class Result, class Visit>
void for_members(Result& result, const Visit& visit) {
  visit("task", result.task);
  visit("length", result.length);
  visit("sample", result.sample);
  visit("method", result.method);
  visit("question", result.question);
  visit("references", result.references);
  visit("answer", result.answer);
  visit("haystack", result.haystack);
  visit("context_tokens", result.context_tokens);
  visit("question_tokens", result.question_tokens);
  visit("answer_tokens", result.answer_tokens);
  visit("rows_per_head", result.rows_per_head);
  visit("prefill_seconds", result.prefill_seconds);
  visit("question_seconds", result.question_seconds);
  visit("decode_seconds", result.decode_seconds);
  visit("decode_steps", result.decode_steps);
  visit("seconds", result.seconds);
  visit("index", result.index);
  visit("tail", result.tail);
  visit("window", result.window);
  visit("sinks", result.sinks);
  visit("dense_layers", result.dense_layers);
  visit("select", result.select);
  visit("seed", result.seed);
  visit("device", result.device);
  visit("version", result.version);
}

double per_second(std::int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

}  // namespace

double EvalResult::prefill_tokens_per_second() const {
  return per_second(context_tokens, prefill_seconds);
}

std::optional<double> EvalResult::decode_tokens_per_second() const {
  if (decode_steps == 0 || !(decode_seconds > 0)) return {};
  return per_second(decode_steps, decode_seconds);
}

Json to_json(const EvalResult& result) {
  Json json;
  for_members(result, [&](const char* name, const auto& member) {
    json[name] = member;
    // Those that may be null stand behind what they belong to.
    const std::string_view last = name;
    if (last == "method") json["budget"] = or_null(result.budget);
    if (last == "answer") {
      json["score"] = or_null(result.score);
      json["f1"] = or_null(result.f1);
    }
    if (last == "rows_per_head") json["bytes_read"] = or_null(result.bytes_read);
    if (last == "select") json["prefill"] = result.prefill;
  });
  return json;
}

EvalResult eval_result_from_json(const Json& json) {
  EvalResult result;
  for_members(result, [&](const char* name, auto& member) { json.at(name).get_to(member); });
  result.budget = or_none<std::int64_t>(json.at("budget"));
  result.score = or_none<double>(json.at("score"));
  result.f1 = or_none<double>(json.at("f1"));
  // Answers of version 0.1 may lack these.
  if (json.contains("bytes_read")) {
    result.bytes_read = or_none<std::int64_t>(json.at("bytes_read"));
  }
  if (json.contains("prefill")) json.at("prefill").get_to(result.prefill);
  return result;
}

}  // namespace topkv
