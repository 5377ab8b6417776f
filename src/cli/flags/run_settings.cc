#include "src/cli/flags/run_settings.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/cli/terminal/parse_numbers.h"
#include "src/cli/terminal/text_layout.h"

namespace topkv::cli {
namespace {

Json count_or(const char* flag, const std::string& text, const char* word) {
  return text == word ? Json(word) : Json(parse_count(flag, text, 0));
}

}  // namespace

std::string absolute_path(const std::string& path) {
  std::error_code error;
  const auto canonical = std::filesystem::weakly_canonical(path, error);
  return printable(error ? path : canonical.string());
}

void add_settings(Json& json, const RetrievalFlags& flags) {
  json["kv_window"] = parse_count("--kv-window", flags.window);
  json["kv_sinks"] = parse_count("--kv-sinks", flags.sinks, 0);
  json["kv_select"] = flags.select;
  if (flags.host_search) json["kv_host_search"] = true;
  json["kv_dense_layers"] = count_or("--kv-dense-layers", flags.dense_layers, "all");
}

void add_settings(Json& json, const PrefillFlags& flags) {
  json["kv_dtype"] = flags.dtype;
  json["prefill"] = flags.mode;
  if (flags.mode == "window") {
    json["prefill_window"] = parse_count("--prefill-window", flags.window);
  }
  json["chunk"] = count_or("--chunk", flags.chunk, "auto");
}

void add_settings(Json& json, const ModelFlags& flags) {
  if (flags.weights != "stored") json["weights"] = flags.weights;
  json["gpu_mem"] =
      flags.gpu_memory.empty() ? Json("auto") : Json(parse_bytes("--gpu-mem", flags.gpu_memory));
}

}  // namespace topkv::cli
