#include "src/eval/run/retrieval_setting.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "src/core/format/json_null.h"

namespace topkv {

std::optional<std::string> guarantee_text(const RetrievalOptions& options) {
  if (!options.guarantee) return {};
  return fmt::format("{},{}", options.guarantee->epsilon, options.guarantee->delta);
}

std::string rule_text(const RetrievalOptions& options) {
  std::string text;
  if (options.mass) text = fmt::format("mass {}", *options.mass);
  if (options.error) text += fmt::format("{}error {}", text.empty() ? "" : ", ", *options.error);
  if (options.guarantee) text = "guarantee " + *guarantee_text(options);
  return text;
}

std::string rule_cell(const RetrievalOptions& options) {
  std::string rule = rule_text(options);
  return rule.empty() ? "-" : rule;
}

std::string index_text(const RetrievalOptions& options) {
  return options.indexer_top ? "indexer" : options.index;
}

std::string setting_text(const RetrievalOptions& options, const std::string& k) {
  const std::string rule = rule_text(options);
  return fmt::format("{}, top {}, tail {}{}{}{}", index_text(options), k, options.tail,
                     rule.empty() ? "" : ", ", rule,
                     options.host_search ? ", found by the host" : "");
}

void add_setting(nlohmann::ordered_json& json, const RetrievalOptions& options,
                 const std::string& k) {
  json["index"] = index_text(options);
  json["kv_topk"] = k;
  json["kv_tail"] = options.tail;
  json["kv_mass"] = or_null(options.mass);
  json["kv_error"] = or_null(options.error);
  json["kv_guarantee"] = or_null(guarantee_text(options));
  json["kv_select"] = options.select_by == SelectBy::group ? "group" : "query_head";
  json["kv_host_search"] = options.host_search;
  if (options.device_rows > 0) json["kv_gpu_rows"] = options.device_rows;
  json["kv_window"] = options.window;
  json["kv_sinks"] = options.sinks;
  json["kv_dense_layers"] = options.dense_layers;
}

}  // namespace topkv
