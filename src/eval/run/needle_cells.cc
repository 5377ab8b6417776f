#include "src/eval/run/needle_cells.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "src/core/format/json_null.h"
#include "src/eval/tasks/needle_grid.h"

namespace topkv {

using Json = nlohmann::ordered_json;

// Found by nlohmann in the type's own namespace.
static void to_json(Json& json, const ForwardTimes& times) {
  json = {{"matmul", times.matmul},
          {"attention", times.attention},
          {"search", times.search},
          {"indexing", times.indexing},
          {"other", times.other}};
}

static void from_json(const Json& json, ForwardTimes& times) {
  json.at("matmul").get_to(times.matmul);
  json.at("attention").get_to(times.attention);
  json.at("search").get_to(times.search);
  json.at("indexing").get_to(times.indexing);
  json.at("other").get_to(times.other);
}

namespace {

/// Visits every member in the order of the file, for reading and for writing.
template <class Result, class Visit>
void each_member(Result& result, const Visit& visit) {
  visit("length", result.length);
  visit("depth", result.depth);
  visit("index", result.method);
  visit("key", result.key);
  visit("value", result.references.front());
  visit("answer", result.answer);
  visit.derived("found", result.found());
  visit("context_tokens", result.context_tokens);
  visit("needle_begin", result.needle.begin);
  visit("needle_end", result.needle.end);
  visit("question_tokens", result.question_tokens);
  visit("answer_tokens", result.answer_tokens);
  visit("rows_per_head", result.rows_per_head);
  visit("recall", result.recall);
  visit("prefill_seconds", result.prefill_seconds);
  visit.derived("prefill_tokens_per_second", result.prefill_tokens_per_second());
  visit("prefill_times", result.prefill_times);
  visit("index_build_seconds", result.index_build_seconds);
  visit("index_bytes", result.index_bytes);
  visit("rows_bytes", result.rows_bytes);
  visit("question_seconds", result.question_seconds);
  visit("decode_steps", result.decode_steps);
  visit("decode_seconds", result.decode_seconds);
  visit.derived("decode_tokens_per_second", or_null(result.decode_tokens_per_second()));
  visit("answer_times", result.answer_times);
  visit("seconds", result.seconds);
  visit("peak_memory_bytes", result.peak_memory_bytes);
  visit("gpu_peak_bytes", result.gpu_peak_bytes);
  visit("device", result.device);
  visit("kv_tail", result.tail);
  visit("kv_topk", result.topk);
  visit("kv_window", result.window);
  visit("kv_sinks", result.sinks);
  visit.later("prefill", result.prefill);
  visit("seed", result.seed);
  visit("version", result.version);
}

struct CellWriter {
  Json& json;

  template <class T>
  void operator()(const char* name, const T& member) const {
    json[name] = member;
  }
  template <class T>
  void operator()(const char* name, const std::optional<T>& member) const {
    json[name] = or_null(member);
  }
  void derived(const char* name, const Json& value) const { json[name] = value; }
  void later(const char* name, const std::string& member) const { json[name] = member; }
};

struct CellReader {
  const Json& json;

  template <class T>
  void operator()(const char* name, T& member) const {
    json.at(name).get_to(member);
  }
  template <class T>
  void operator()(const char* name, std::optional<T>& member) const {
    member = or_none<T>(json.at(name));
  }
  void derived(const char* name, const Json& /*value*/) const { json.at(name); }
  /// Cells of version 0.1 lack it.
  void later(const char* name, std::string& member) const {
    if (json.contains(name)) json.at(name).get_to(member);
  }
};

}  // namespace

Json to_cell(const EvalResult& result) {
  Json json;
  each_member(result, CellWriter{json});
  return json;
}

EvalResult result_from_cell(const Json& cell) {
  EvalResult result;
  result.task = needle_grid_name;
  result.references.resize(1);
  each_member(result, CellReader{cell});
  result.score = cell.at("found").get<bool>() ? 1 : 0;
  return result;
}

std::vector<EvalResult> in_grid_order(std::vector<EvalResult> results,
                                      const std::vector<std::string>& indices) {
  const auto rank = [&](const EvalResult& result) {
    return std::find(indices.begin(), indices.end(), result.method) - indices.begin();
  };
  std::sort(results.begin(), results.end(), [&](const EvalResult& a, const EvalResult& b) {
    return std::tuple(rank(a), a.length, a.depth) < std::tuple(rank(b), b.length, b.depth);
  });
  return results;
}

}  // namespace topkv
