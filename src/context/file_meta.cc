#include "src/context/file_meta.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/core/json_file.h"
#include "src/core/printable.h"
#include "src/store/row_store.h"
#include "topkv/error.h"
#include "topkv/index_spec.h"

namespace topkv {
namespace {

constexpr std::int64_t most_heads = 1 << 20;
constexpr std::int64_t most_tokens = std::int64_t{1} << 40;
constexpr std::int64_t most_indices = 1 << 10;

std::vector<std::int64_t> windows_of(const JsonObject& json) {
  std::vector<std::int64_t> windows;
  const nlohmann::json* list = json.find("sliding_window");
  if (list == nullptr) return windows;
  if (!list->is_array()) json.fail("sliding_window", "a list of tokens, one number for each layer");
  for (const auto& one : *list) {
    if (!one.is_number_integer() || one < 0 || one > most_tokens)
      json.fail("sliding_window", "a list of tokens, one number for each layer");
    windows.push_back(one.get<std::int64_t>());
  }
  return windows;
}

std::vector<FileMeta::Index> indices_of(const JsonObject& json, const std::filesystem::path& path) {
  const nlohmann::json* list = json.find("indices");
  if (list == nullptr || !list->is_array() || std::ssize(*list) > most_indices)
    json.fail("indices", fmt::format("a list of at most {} indices", most_indices));
  std::vector<FileMeta::Index> indices;
  for (const auto& one : *list) {
    const std::int64_t number = std::ssize(indices);
    const JsonObject index(one, path, fmt::format("indices[{}].", number));
    indices.push_back(
        {.spec = index.text("spec"), .heads_of = index.integer("heads_of", -1, number - 1, -1)});
  }
  return indices;
}

}  // namespace

std::string write_meta(const FileMeta& meta) {
  nlohmann::ordered_json json;
  json["writer"] = meta.writer;
  json["tokens"] = meta.tokens;
  json["layers"] = meta.shape.layers;
  json["q_heads"] = meta.shape.q_heads;
  json["kv_heads"] = meta.shape.kv_heads;
  json["head_dim"] = meta.shape.head_dim;
  json["scale"] = meta.shape.scale;
  json["softcap"] = meta.shape.softcap;
  if (!meta.shape.sliding_window.empty()) json["sliding_window"] = meta.shape.sliding_window;
  json["chunk_len"] = meta.shape.chunk_len;
  json["kv_dtype"] = meta.dtype.name();
  json["indices"] = nlohmann::ordered_json::array();
  for (const FileMeta::Index& index : meta.indices) {
    nlohmann::ordered_json one;
    one["spec"] = index.spec;
    if (index.heads_of >= 0) one["heads_of"] = index.heads_of;
    json["indices"].push_back(std::move(one));
  }
  json["model"] = meta.model;
  json["made_with"] = meta.made_with;
  json["text_left"] = meta.end.text_left;
  json["chat"] = meta.end.chat;
  json["system"] = meta.end.system;
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

FileMeta parse_meta(std::string_view text, const std::filesystem::path& path) {
  const nlohmann::json parsed = parse_json(text, path);
  const JsonObject json(parsed, path);
  FileMeta meta;
  meta.writer = printable(json.text("writer"));
  meta.tokens = json.integer("tokens", 0, most_tokens);
  AttentionShape& shape = meta.shape;
  shape.layers = json.integer("layers", 1, most_heads);
  shape.q_heads = json.integer("q_heads", 1, most_heads);
  shape.kv_heads = json.integer("kv_heads", 1, most_heads);
  shape.head_dim = json.integer("head_dim", 1, most_heads);
  constexpr double most = std::numeric_limits<float>::max();
  shape.scale = static_cast<float>(json.number("scale", 0, most));
  shape.softcap = static_cast<float>(json.number("softcap", 0, most));
  shape.sliding_window = windows_of(json);
  shape.chunk_len = json.integer("chunk_len", 0, most_tokens);
  meta.indices = indices_of(json, path);
  meta.model = printable(json.text("model"));
  meta.made_with = printable(json.text("made_with"));
  meta.end = {.text_left = json.text("text_left"),
              .chat = json.flag("chat"),
              .system = json.text("system")};
  try {
    shape.check();
    meta.dtype = KvDType::parse(json.text("kv_dtype"));
    RowStore::bytes_per_token(shape, meta.dtype);
    for (const FileMeta::Index& index : meta.indices) {
      const IndexSpec spec(index.spec);
      spec.check(shape.head_dim, meta.tokens);
      if (spec.text() != index.spec)
        json.fail("indices", fmt::format("specs in full, as \"{}\"", spec.text()));
      if (std::ranges::count(meta.indices, index.spec, &FileMeta::Index::spec) > 1)
        json.fail("indices", fmt::format("each index once, not \"{}\" again", spec.text()));
    }
  } catch (const InvalidArgument& error) {
    throw FileError(fmt::format("{}: {}", path_text(path), error.what()));
  }
  return meta;
}

}  // namespace topkv
