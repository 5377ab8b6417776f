#include "src/eval/report/prefill_lines.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace topkv {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string way_text(const PrefillAttention& way) {
  std::string text(name_of(way.mode));
  if (way.mode == Prefill::dense) return text;
  text += fmt::format(" {}", way.window);
  if (way.mode == Prefill::window) return text;
  if (way.mass >= 1) return text + fmt::format(" + {} keys", way.keys);
  return text + fmt::format(" + {} to {} keys, mass {:g}", way.least_keys, way.keys, way.mass);
}

std::vector<Json> prefill_json(std::span<const PrefillFidelity> ways, const FidelityRun& run) {
  std::vector<Json> lines;
  for (const PrefillFidelity& of : ways) {
    const PrefillAttention& way = of.attention;
    const bool chooses = way.mode == Prefill::sparse;
    Json json;
    json["setting"] = way_text(way);
    json["prefill"] = name_of(way.mode);
    json["prefill_window"] = way.mode == Prefill::dense ? Json(nullptr) : Json(way.window);
    json["prefill_keys"] = chooses ? Json(way.keys) : Json(nullptr);
    json["prefill_least"] = chooses ? Json(way.least_keys) : Json(nullptr);
    json["prefill_mass"] = chooses ? Json(way.mass) : Json(nullptr);
    json["context_tokens"] = run.context_tokens;
    json["haystack"] = run.haystack;
    json["keys_share"] = of.keys;
    json["perplexity"] = of.perplexity;
    json["text_kl"] = of.text_kl;
    json["text_agreement"] = of.text_agreement;
    json["answer_kl"] = of.answer_kl;
    json["answer_agreement"] = of.answer_agreement;
    json["answer_perplexity"] = of.answer_perplexity;
    json["key_error"] = of.key_error;
    json["value_error"] = of.value_error;
    json["layer_mass"] = Json::array();
    json["layer_keys"] = Json::array();
    for (const PrefillShare& share : of.shares) {
      const bool has = share.queries > 0;
      json["layer_mass"].push_back(has ? Json(share.mean_mass()) : Json(nullptr));
      json["layer_keys"].push_back(has ? Json(share.keys / static_cast<double>(share.queries))
                                       : Json(nullptr));
    }
    json["seconds"] = of.seconds;
    json["weights"] = run.weights;
    json["device"] = run.device;
    json["version"] = run.version;
    lines.push_back(std::move(json));
  }
  return lines;
}

}  // namespace topkv
