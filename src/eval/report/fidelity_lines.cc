#include "src/eval/report/fidelity_lines.h"

#include "src/core/format/json_null.h"
#include "src/eval/report/kl_fields.h"

namespace topkv {
namespace {

using Json = nlohmann::ordered_json;

/// How rows are stored, where that is not what most expect.
std::string rows_text(const Fidelity& setting) {
  return setting.kv_dtype == DType::bf16 ? "" : setting.kv_dtype.name();
}

}  // namespace

std::string setting_text(const Fidelity& setting) {
  const std::string rows = rows_text(setting);
  return setting_text(setting.options, setting.k) + (rows.empty() ? "" : ", rows " + rows);
}

std::vector<Json> fidelity_json(const FidelityReport& report, const FidelityRun& run) {
  std::vector<Json> lines;
  for (const Fidelity& setting : report.settings) {
    Json json;
    json["setting"] = setting_text(setting);
    add_setting(json, setting.options, setting.k);
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
    add_kl(json, setting.kl);
    json["delta_p_mean"] = setting.delta_p_mean;
    json["delta_p_rms"] = setting.delta_p_rms;
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

}  // namespace topkv
