#include "src/eval/run/needle_result.h"

#include <algorithm>
#include <tuple>

#include "src/core/format/json_null.h"

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

// Visits every member with its name, for reading and for writing.
template <class CellType, class Visit>
void each_member(CellType& cell, const Visit& visit) {
  visit("length", cell.length);
  visit("depth", cell.depth);
  visit("index", cell.index);
  visit("key", cell.key);
  visit("value", cell.value);
  visit("answer", cell.answer);
  visit("found", cell.found);
  visit("context_tokens", cell.context_tokens);
  visit("needle_begin", cell.needle_begin);
  visit("needle_end", cell.needle_end);
  visit("question_tokens", cell.question_tokens);
  visit("answer_tokens", cell.answer_tokens);
  visit("rows_per_head", cell.rows_per_head);
  visit("recall", cell.recall);
  visit("prefill_seconds", cell.prefill_seconds);
  visit("prefill_tokens_per_second", cell.prefill_tokens_per_second);
  visit("prefill_times", cell.prefill_times);
  visit("index_build_seconds", cell.index_build_seconds);
  visit("index_bytes", cell.index_bytes);
  visit("rows_bytes", cell.rows_bytes);
  visit("question_seconds", cell.question_seconds);
  visit("decode_steps", cell.decode_steps);
  visit("decode_seconds", cell.decode_seconds);
  visit("decode_tokens_per_second", cell.decode_tokens_per_second);
  visit("answer_times", cell.answer_times);
  visit("seconds", cell.seconds);
  visit("peak_memory_bytes", cell.peak_memory_bytes);
  visit("gpu_peak_bytes", cell.gpu_peak_bytes);
  visit("device", cell.device);
  visit("kv_tail", cell.kv_tail);
  visit("kv_topk", cell.kv_topk);
  visit("kv_window", cell.kv_window);
  visit("kv_sinks", cell.kv_sinks);
  visit("seed", cell.seed);
  visit("version", cell.version);
}

template <class T>
void put(Json& json, const T& member) {
  json = member;
}

template <class T>
void put(Json& json, const std::optional<T>& member) {
  json = or_null(member);
}

template <class T>
void take(const Json& json, T& member) {
  json.get_to(member);
}

template <class T>
void take(const Json& json, std::optional<T>& member) {
  member = or_none<T>(json);
}

}  // namespace

Json to_json(const Cell& cell) {
  Json json;
  each_member(cell, [&](const char* name, const auto& member) { put(json[name], member); });
  return json;
}

Cell cell_from_json(const Json& json) {
  Cell cell;
  each_member(cell, [&](const char* name, auto& member) { take(json.at(name), member); });
  return cell;
}

std::vector<Cell> in_grid_order(std::vector<Cell> cells, const std::vector<std::string>& indices) {
  const auto rank = [&](const Cell& cell) {
    return std::find(indices.begin(), indices.end(), cell.index) - indices.begin();
  };
  std::sort(cells.begin(), cells.end(), [&](const Cell& a, const Cell& b) {
    return std::tuple(rank(a), a.length, a.depth) < std::tuple(rank(b), b.length, b.depth);
  });
  return cells;
}

}  // namespace topkv
