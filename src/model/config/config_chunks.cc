// Dual chunk attention: dual_chunk_attention_config.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/core/text/printable.h"
#include "src/model/config/config_parts.h"

namespace topkv {
namespace {

using Json = nlohmann::json;

constexpr const char* key_of_chunks = "dual_chunk_attention_config";

/// Whose absence the paper and vLLM take for granted: other networks would be a guess.
void check_network(const JsonObject& root, const ModelConfig& config) {
  const auto refuse = [&](bool has, const char* what) {
    if (!has) return;
    root.unsupported(key_of_chunks,
                     fmt::format("it in models without {}; remove one of the two", what));
  };
  const auto& windows = config.attention.sliding_window;
  refuse(std::any_of(windows.begin(), windows.end(), [](auto window) { return window > 0; }),
         "sliding windows");
  refuse(!config.layer_rope.empty(), "layers that have no RoPE, or a RoPE of their own");
  refuse(config.rope_scaling.kind != RopeScaling::Kind::none, "a scaling of RoPE");
  refuse(config.query_growth.beta != 0, "queries that grow with their position");
  refuse(config.rotary_dim != config.attention.head_dim,
         "a part of each head that RoPE does not rotate");
}

}  // namespace

/// What is missing is as in vLLM. Its sparse_attention_* say which keys a prefill may skip to be
/// faster (MInference), which changes nothing of the network that is approximated so.
void read_dual_chunk(const JsonObject& root, const std::filesystem::path& file,
                     ModelConfig& config) {
  const Json* value = root.find(key_of_chunks);
  if (value == nullptr || (value->is_object() && value->empty())) return;
  const JsonObject chunks(*value, file, std::string(key_of_chunks) + ".");
  check_network(root, config);
  DualChunk& read = config.dual_chunk;
  read.chunk_size = chunks.integer("chunk_size", 2, max_positions, 8192);
  read.local_size = chunks.integer("local_size", 0, read.chunk_size - 1,
                                   std::min<std::int64_t>(1024, read.chunk_size - 1));
  read.original_max_position =
      chunks.integer("original_max_position_embeddings", 0, max_positions, 0);
  config.attention.chunk_len = read.chunk_len();
  for (const auto& [key, inner] : value->items()) {
    if (key == "chunk_size" || key == "local_size" || key == "original_max_position_embeddings" ||
        key.starts_with("sparse_attention")) {
      continue;
    }
    config.warnings.push_back(fmt::format("{}: {}.{} is {}: not read by topkv", path_text(file),
                                          key_of_chunks, key, shown(inner)));
  }
}

}  // namespace topkv
