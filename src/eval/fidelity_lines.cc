#include "src/eval/fidelity_lines.h"

#include <fmt/format.h>

#include <optional>

#include "src/eval/csv.h"
#include "src/eval/json_null.h"

namespace topkv {
namespace {

using Json = nlohmann::ordered_json;

std::string field(const Json& value) {
  if (value.is_string()) return csv_field(value.get<std::string>());
  const std::string text = value.dump();
  return text == "null" ? "" : text;  // numbers that are none, too
}

/// How rows are stored, where that is not what most expect.
std::string rows_text(const Fidelity& setting) {
  return setting.kv_dtype == DType::bf16 ? "" : setting.kv_dtype.name();
}

}  // namespace

std::string rule_text(const RetrievalOptions& options) {
  std::string text;
  if (options.mass) text = fmt::format("mass {}", *options.mass);
  if (options.error) text += fmt::format("{}error {}", text.empty() ? "" : ", ", *options.error);
  return text;
}

std::string setting_text(const Fidelity& setting) {
  const std::string rule = rule_text(setting.options);
  return fmt::format("{}, top {}, tail {}{}{}{}{}", setting.options.index, setting.k,
                     setting.options.tail, rule.empty() ? "" : ", ", rule,
                     setting.options.host_search ? ", found by the host" : "",
                     rows_text(setting).empty() ? "" : ", rows " + rows_text(setting));
}

std::vector<Json> fidelity_json(const FidelityReport& report, const FidelityRun& run) {
  std::vector<Json> lines;
  for (const Fidelity& setting : report.settings) {
    Json json;
    json["setting"] = setting_text(setting);
    json["index"] = setting.options.index;
    json["kv_topk"] = setting.k;
    json["kv_tail"] = setting.options.tail;
    json["kv_mass"] = or_null(setting.options.mass);
    json["kv_error"] = or_null(setting.options.error);
    json["kv_select"] = setting.options.select_by == SelectBy::group ? "group" : "query_head";
    json["kv_host_search"] = setting.options.host_search;
    json["kv_window"] = setting.options.window;
    json["kv_sinks"] = setting.options.sinks;
    json["kv_dense_layers"] = setting.options.dense_layers;
    json["kv_dtype"] = setting.kv_dtype.name();
    json["context_tokens"] = run.context_tokens;
    json["haystack"] = run.haystack;
    json["prefill"] = run.prefill;
    json["probe_tokens"] = setting.tokens;
    json["error_mean"] = setting.error_mean;
    json["error_p90"] = setting.error_p90;
    json["error_told"] = or_null(setting.error_told);
    json["layer_error"] = setting.layer_error;
    json["layer_keys_75"] = Json::array();
    json["layer_entropy"] = Json::array();
    for (const LayerSpread& layer : report.spread) {
      const bool known = layer.heads > 0;
      json["layer_keys_75"].push_back(known ? Json(layer.mean_keys()) : Json(nullptr));
      json["layer_entropy"].push_back(known ? Json(layer.mean_entropy()) : Json(nullptr));
    }
    json["kl_mean"] = setting.kl_mean;
    json["kl_max"] = setting.kl_max;
    json["agreement"] = setting.agreement;
    json["perplexity"] = setting.perplexity;
    json["dense_perplexity"] = report.dense_perplexity;
    json["mass"] = or_null(setting.mass);
    json["mass_p10"] = or_null(setting.mass_p10);
    json["mass_told"] = or_null(setting.mass_told);
    json["recall"] = or_null(setting.recall);
    json["mass_recall"] = or_null(setting.mass_recall);
    json["mass_recall_p10"] = or_null(setting.mass_recall_p10);
    json["rows"] = setting.rows;
    json["retrieved_more"] = setting.retrieved_more;
    json["went_dense"] = setting.went_dense;
    json["bytes_read"] = setting.bytes_read > 0 ? Json(setting.bytes_read) : Json(nullptr);
    json["bytes_held_device"] = setting.bytes_held_device;
    json["bytes_held_host"] = setting.bytes_held_host;
    json["weights"] = run.weights;
    json["device"] = run.device;
    json["version"] = run.version;
    lines.push_back(std::move(json));
  }
  return lines;
}

std::string fidelity_csv(const std::vector<Json>& lines) {
  std::string text;
  const auto add_line = [&](const auto& text_of) {
    std::vector<std::string> fields;
    for (const auto& [name, value] : lines.front().items()) {
      if (!value.is_array()) fields.push_back(text_of(name));
    }
    text += fmt::format("{}\n", fmt::join(fields, ","));
  };
  add_line([](const std::string& name) { return csv_field(name); });
  for (const Json& json : lines) {
    add_line([&](const std::string& name) { return field(json.at(name)); });
  }
  return text;
}

}  // namespace topkv
