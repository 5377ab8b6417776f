#include "src/eval/report/perplexity_lines.h"

#include <fmt/format.h>

#include "src/core/format/csv.h"
#include "src/core/format/json_null.h"
#include "src/eval/report/kl_fields.h"
#include "src/eval/run/retrieval_setting.h"

namespace topkv {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::vector<Json> perplexity_json(const PerplexityReport& report, const PerplexityFacts& facts) {
  std::vector<Json> lines;
  const auto add = [&](const Perplexity& of, bool is_dense) {
    Json json;
    json["setting"] = is_dense ? "dense" : setting_text(of.options, of.k);
    add_setting(json, of.options, of.k);
    if (is_dense) {
      for (auto& [name, value] : json.items())
        if (name != "setting") value = nullptr;
    }
    const PerplexityDifference worse = difference(of, report);
    const auto tokens = std::ssize(of.nats);
    json["kv_dtype"] = facts.kv_dtype;
    json["piece_tokens"] = facts.piece_tokens;
    json["pieces"] = report.pieces;
    json["scored_of_piece"] = report.scored;
    json["tokens_scored"] = tokens;
    json["nats"] = of.mean();
    json["perplexity"] = of.perplexity();
    json["difference"] = is_dense ? Json(nullptr) : Json(worse.mean);
    json["difference_low"] = worse.interval ? Json(worse.interval->low) : Json(nullptr);
    json["difference_high"] = worse.interval ? Json(worse.interval->high) : Json(nullptr);
    const PredictionDifference& predictions = of.predictions;
    add_kl(json, is_dense ? std::nullopt : std::optional(spread_of(predictions.kl)));
    json["delta_p_mean"] = is_dense ? Json(nullptr) : Json(predictions.mean_delta_p());
    json["delta_p_rms"] = is_dense ? Json(nullptr) : Json(predictions.rms_delta_p());
    json["same_top"] = is_dense ? Json(nullptr) : Json(predictions.agreement());
    json["rows"] = is_dense ? Json(nullptr) : Json(of.rows);
    json["bytes_read"] = or_null(of.bytes_read);
    json["decode_seconds"] = of.seconds;
    json["tokens_per_second"] = static_cast<double>(tokens) / of.seconds;
    json["prefill"] = facts.prefill;
    json["weights"] = facts.weights;
    json["device"] = facts.device;
    json["version"] = facts.version;
    lines.push_back(std::move(json));
  };
  add(report.dense, true);
  for (const Perplexity& setting : report.settings) add(setting, false);
  return lines;
}

std::string token_csv(const PerplexityReport& report, std::int64_t piece_tokens,
                      std::span<const Token> ids) {
  std::string text = "piece,token,id,dense";
  for (const Perplexity& of : report.settings)
    text += "," + csv_field(setting_text(of.options, of.k));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t piece = static_cast<std::int64_t>(i) / report.scored;
    const std::int64_t token =
        piece_tokens - report.scored + static_cast<std::int64_t>(i) % report.scored;
    text += fmt::format("\n{},{},{},{}", piece, token, ids[i], report.dense.nats[i]);
    for (const Perplexity& of : report.settings) text += fmt::format(",{}", of.nats[i]);
  }
  return text + "\n";
}

}  // namespace topkv
