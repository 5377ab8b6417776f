#include "src/cli/flags/run_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "src/cli/terminal/text_layout.h"
#include "src/core/text/byte_text.h"

namespace topkv::cli {
namespace {

/// Whether tokens of a prefill may choose keys.
bool may_choose(const PrefillFlags& flags) {
  return flags.mode == "sparse" || flags.mode == "auto";
}

}  // namespace

std::string absolute_path(const std::string& path) {
  std::error_code error;
  const auto canonical = std::filesystem::weakly_canonical(path, error);
  return printable(error ? path : canonical.string());
}

void resolve_settings(Json& json, const PrefillFlags& flags, std::int64_t threads,
                      const std::string& device) {
  if (flags.mode == "dense") json.erase("prefill_window");
  if (may_choose(flags)) {
    json["prefill_least"] = prefill_attention(flags, 0).least_keys;
  } else {
    for (const char* name : {"prefill_keys", "prefill_least", "prefill_mass"}) json.erase(name);
  }
  json["threads"] = threads;
  json["device"] = device;
}

PrefillFlags as_read(PrefillFlags flags, const std::vector<EvalResult>& answers) {
  if (answers.empty()) return flags;
  const std::string& mode = answers.front().prefill;
  const auto has_mode = [&](const EvalResult& answer) { return answer.prefill == mode; };
  if (!mode.empty() && std::ranges::all_of(answers, has_mode)) flags.mode = mode;
  return flags;
}

std::string settings_text(std::string begin, const RetrievalFlags& retrieval,
                          const PrefillFlags& prefill) {
  std::string text = std::move(begin);
  if (retrieval.host_search) text += ", found by the host";
  if (retrieval.gpu_rows)
    text += fmt::format(", up to {} of rows on the GPU", byte_text(*retrieval.gpu_rows));
  if (retrieval.dense_layers.value_or(0) > 0)
    text += fmt::format(", first {} layers dense", *retrieval.dense_layers);
  text += "; prefill " + prefill.mode;
  if (prefill.mode != "dense") text += fmt::format(" {}", prefill.window);
  if (may_choose(prefill)) {
    text += fmt::format(" and up to {} keys", prefill.keys);
    if (prefill.mass) text += fmt::format(", mass {}", *prefill.mass);
  }
  return prefill.dtype == "bf16" ? text : text + "; rows " + prefill.dtype;
}

}  // namespace topkv::cli
