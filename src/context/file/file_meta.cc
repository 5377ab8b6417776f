#include "src/context/file/file_meta.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "index/common/index_factory.h"
#include "src/core/format/json_file.h"
#include "src/core/text/printable.h"
#include "src/store/row_store.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t most_heads = 1 << 20;
constexpr std::int64_t most_tokens = std::int64_t{1} << 40;
constexpr std::int64_t most_indices = 1 << 10;
constexpr std::size_t most_spec_bytes = 1024;
constexpr std::int64_t most_sources = 1 << 20;
constexpr std::int64_t most_source_name = 1 << 16;
constexpr std::int64_t most_source_bytes = std::int64_t{1} << 60;

/// Returns a list of numbers from `least` on, one for each layer. Empty: there is no list of this
/// name.
std::vector<std::int64_t> of_layers(const JsonObject& json, const char* name, const char* wanted,
                                    std::int64_t least = 0) {
  std::vector<std::int64_t> numbers;
  const nlohmann::json* list = json.find(name);
  if (list == nullptr) return numbers;
  if (!list->is_array()) json.fail(name, wanted);
  for (const auto& one : *list) {
    if (!one.is_number_integer() || one < least || one > most_tokens) json.fail(name, wanted);
    numbers.push_back(one.get<std::int64_t>());
  }
  return numbers;
}

/// Returns the trained indexer. Not set: there is none. Its members are checked with the shape.
std::optional<IndexerShape> indexer_of(const JsonObject& json, const std::filesystem::path& path) {
  const nlohmann::json* found = json.find("indexer");
  if (found == nullptr) return {};
  const JsonObject one(*found, path, "indexer.");
  IndexerShape indexer;
  indexer.dim = one.integer("dim", 1, most_heads);
  indexer.heads = one.integer("heads", 1, most_heads);
  indexer.choices = one.integer("choices", 1, most_heads);
  indexer.tokens_per_key = one.integer("tokens_per_key", 1, most_heads);
  indexer.block = one.integer("block", 1, most_heads);
  indexer.top = one.integer("top", 1, std::numeric_limits<std::int64_t>::max());
  indexer.local_blocks = one.integer("local_blocks", 0, indexer.top);
  const std::string score = one.text("score");
  if (score != name_of(IndexScore::dot) && score != name_of(IndexScore::relu))
    one.fail("score", "\"dot\" or \"relu\"");
  indexer.score = parse_index_score(score);
  const std::string dtype = one.text("dtype");
  if (dtype != name_of(DType::f32) && dtype != name_of(DType::bf16))
    one.fail("dtype", "\"f32\" or \"bf16\"");
  indexer.dtype = parse_dtype(dtype);
  return indexer;
}

nlohmann::ordered_json json_of(const IndexerShape& indexer) {
  nlohmann::ordered_json json;
  json["dim"] = indexer.dim;
  json["heads"] = indexer.heads;
  json["choices"] = indexer.choices;
  json["score"] = name_of(indexer.score);
  json["tokens_per_key"] = indexer.tokens_per_key;
  json["block"] = indexer.block;
  json["top"] = indexer.top;
  json["local_blocks"] = indexer.local_blocks;
  json["dtype"] = name_of(indexer.dtype);
  return json;
}

std::vector<FileMeta::Index> indices_of(const JsonObject& json, const std::filesystem::path& path) {
  const nlohmann::json* list = json.find("indices");
  if (list == nullptr || !list->is_array() || std::ssize(*list) > most_indices)
    json.fail("indices", fmt::format("a list of at most {} indices", most_indices));
  std::vector<FileMeta::Index> indices;
  for (const auto& one : *list) {
    const std::int64_t number = std::ssize(indices);
    const JsonObject index(one, path, fmt::format("indices[{}].", number));
    std::string spec = index.text("spec");
    if (spec.size() > most_spec_bytes)
      index.fail("spec", fmt::format("a text of at most {} bytes", most_spec_bytes));
    if (std::ranges::count(indices, spec, &FileMeta::Index::spec) > 0)
      index.fail("spec", "a spec that is not in the list already");
    const std::int64_t heads_of = index.integer("heads_of", -1, number - 1, -1);
    const auto owner =
        heads_of < 0 ? indices.size() : indices[static_cast<std::size_t>(heads_of)].owner;
    indices.push_back({.spec = std::move(spec), .heads_of = heads_of, .owner = owner});
  }
  return indices;
}

/// Returns the files of the text. Empty: there is no such list.
std::vector<ContextSource> sources_of(const JsonObject& json, const std::filesystem::path& path) {
  std::vector<ContextSource> sources;
  const nlohmann::json* list = json.find("sources");
  if (list == nullptr) return sources;
  if (!list->is_array() || std::ssize(*list) > most_sources)
    json.fail("sources", fmt::format("a list of at most {} files", most_sources));
  std::int64_t end = 0;  // of the file before
  for (const auto& one : *list) {
    const JsonObject source(one, path, fmt::format("sources[{}].", sources.size()));
    ContextSource& of = sources.emplace_back(source.text("name"));
    if (std::ssize(of.name) > most_source_name)
      source.fail("name", fmt::format("a text of at most {} bytes", most_source_name));
    of.name = printable(of.name);
    of.begin = source.integer("begin", end, most_source_bytes);
    of.bytes = source.integer("bytes", 0, most_source_bytes - of.begin);
    end = of.begin + of.bytes;
  }
  return sources;
}

/// What `index` is to this version. REQUIRES: those before it have been looked at.
std::optional<IndexSpec> known_index(const FileMeta::Index& index, const FileMeta& meta) {
  try {
    IndexSpec spec(index.spec);
    spec.check(meta.shape.head_dim, meta.tokens);
    if (spec.text() != index.spec) return {};
    if (index.heads_of < 0) return spec;
    const std::optional<IndexSpec>& owner = meta.indices[index.owner].known;
    if (owner && spec.factory().is_served_by(*owner->factory().make())) return spec;
  } catch (const InvalidArgument&) {
  }
  return {};
}

/// Throws InvalidArgument unless the first rows can be those of a context of this shape: a layer
/// has the rows of its whole sliding window.
void check_first_rows(const FileMeta& meta) {
  const auto layers = std::ssize(meta.first_rows);
  if (layers != 0 && layers != meta.shape.layers)
    throw InvalidArgument(
        fmt::format("first_rows has {} numbers for {} layers", layers, meta.shape.layers));
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const bool slides = meta.shape.has_rows(layer) && meta.shape.window_of(layer) > 0;
    const std::int64_t most =
        slides ? std::max<std::int64_t>(0, meta.tokens - meta.shape.window_of(layer)) : 0;
    const std::int64_t first = meta.first_rows[static_cast<std::size_t>(layer)];
    if (first > most)
      throw InvalidArgument(
          fmt::format("the first row of layer {} has position {}; expected {} at most, for its "
                      "sliding window",
                      layer, first, most));
  }
}

}  // namespace

std::vector<std::string> FileMeta::known_specs() const {
  std::vector<std::string> specs;
  for (const Index& index : indices)
    if (index.known) specs.push_back(index.spec);
  return specs;
}

void check_sources(std::span<const ContextSource> sources) {
  if (std::ssize(sources) > most_sources) {
    throw InvalidArgument(fmt::format("save: {} files of the text; expected at most {}",
                                      sources.size(), most_sources));
  }
  std::int64_t end = 0;
  for (const ContextSource& of : sources) {
    if (std::ssize(of.name) > most_source_name || of.begin < end || of.begin > most_source_bytes ||
        of.bytes < 0 || of.bytes > most_source_bytes - of.begin) {
      throw InvalidArgument(fmt::format(
          "save: a file of the text has a name of {} bytes, begins at byte {} and has {} bytes; "
          "expected files in the order of the text, here from byte {} on, of at most 2^60 bytes "
          "together, with names of at most {} bytes",
          of.name.size(), of.begin, of.bytes, end, most_source_name));
    }
    end = of.begin + of.bytes;
  }
}

std::string write_meta(const FileMeta& meta) {
  nlohmann::ordered_json json;
  json["writer"] = meta.writer;
  json["tokens"] = meta.tokens;
  if (meta.tokens_before >= 0) json["tokens_before"] = meta.tokens_before;
  if (!meta.first_rows.empty()) json["first_rows"] = meta.first_rows;
  json["layers"] = meta.shape.layers;
  json["q_heads"] = meta.shape.q_heads;
  json["kv_heads"] = meta.shape.kv_heads;
  json["head_dim"] = meta.shape.head_dim;
  json["scale"] = meta.shape.scale;
  json["softcap"] = meta.shape.softcap;
  if (!meta.shape.sliding_window.empty()) json["sliding_window"] = meta.shape.sliding_window;
  if (!meta.shape.row_layer.empty()) json["row_layer"] = meta.shape.row_layer;
  if (!meta.shape.state_size.empty()) json["state_size"] = meta.shape.state_size;
  if (meta.shape.sliding_kv_heads != 0) json["sliding_kv_heads"] = meta.shape.sliding_kv_heads;
  if (meta.shape.sliding_head_dim != 0) json["sliding_head_dim"] = meta.shape.sliding_head_dim;
  if (meta.shape.keys_are_values) json["keys_are_values"] = true;
  if (meta.shape.indexer) json["indexer"] = json_of(*meta.shape.indexer);
  if (!meta.shape.indexer_layer.empty()) json["indexer_layer"] = meta.shape.indexer_layer;
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
  if (meta.length != 0) json["length"] = meta.length;
  json["text_left"] = meta.end.text_left;
  json["chat"] = meta.end.chat;
  json["system"] = meta.end.system;
  for (const ContextSource& source : meta.sources) {
    json["sources"].push_back(
        {{"name", source.name}, {"begin", source.begin}, {"bytes", source.bytes}});
  }
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

FileMeta parse_meta(std::string_view text, const std::filesystem::path& path) {
  const nlohmann::json parsed = parse_json(text, path);
  const JsonObject json(parsed, path);
  FileMeta meta;
  meta.writer = printable(json.text("writer"));
  meta.tokens = json.integer("tokens", 0, most_tokens);
  meta.tokens_before = json.integer("tokens_before", 0, most_tokens, -1);
  AttentionShape& shape = meta.shape;
  shape.layers = json.integer("layers", 1, most_heads);
  shape.q_heads = json.integer("q_heads", 1, most_heads);
  shape.kv_heads = json.integer("kv_heads", 1, most_heads);
  shape.head_dim = json.integer("head_dim", 1, most_heads);
  constexpr double most = std::numeric_limits<float>::max();
  shape.scale = static_cast<float>(json.number("scale", 0, most));
  shape.softcap = static_cast<float>(json.number("softcap", 0, most));
  shape.sliding_window =
      of_layers(json, "sliding_window", "a list of tokens, one number for each layer");
  shape.row_layer = of_layers(json, "row_layer", "a list of layers, one number for each layer");
  shape.state_size = of_layers(json, "state_size", "a list of sizes, one number for each layer");
  shape.sliding_kv_heads = json.integer("sliding_kv_heads", 0, most_heads, 0);
  shape.sliding_head_dim = json.integer("sliding_head_dim", 0, most_heads, 0);
  shape.keys_are_values = json.flag("keys_are_values", false);
  shape.indexer = indexer_of(json, path);
  shape.indexer_layer =
      of_layers(json, "indexer_layer", "a list of layers or -1, one number for each layer", -1);
  shape.chunk_len = json.integer("chunk_len", 0, most_tokens);
  meta.first_rows = of_layers(json, "first_rows", "a list of positions, one number for each layer");
  meta.indices = indices_of(json, path);
  meta.model = printable(json.text("model"));
  meta.made_with = printable(json.text("made_with"));
  meta.length = json.integer("length", 0, most_tokens, 0);
  meta.end = {.text_left = json.text("text_left"),
              .chat = json.flag("chat"),
              .system = json.text("system")};
  meta.sources = sources_of(json, path);
  try {
    shape.check();
    meta.dtype = KvDType::parse(json.text("kv_dtype"));
    shape.check_rows(meta.dtype);
    RowStore::bytes_per_token(shape, meta.dtype);
    check_first_rows(meta);
  } catch (const InvalidArgument& error) {
    throw FileError(fmt::format("{}: {}", path_text(path), error.what()));
  }
  for (FileMeta::Index& index : meta.indices) index.known = known_index(index, meta);
  return meta;
}

}  // namespace topkv
