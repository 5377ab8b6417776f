// The parts that config.json is read in, each a subject of its own. All are for ModelConfig::load,
// throw as it does and check every number that they take.
#pragma once

#include <cstdint>
#include <filesystem>

#include "src/core/format/json_file.h"
#include "src/model/families/families.h"
#include "topkv/model.h"

namespace topkv {

inline constexpr std::int64_t max_positions = std::int64_t{1} << 40;
/// Of hidden and intermediate sizes.
inline constexpr std::int64_t max_width = std::int64_t{1} << 22;

/// Theta, scaling, which part of a head is turned and in which layers (config_rope.cc).
/// length: as of ModelConfig::load. REQUIRES: attention (windows too) and max_position are read.
void read_rope(const JsonObject& root, const std::filesystem::path& file, const Family& family,
               std::int64_t length, ModelConfig& config);

/// ModelConfig::dual_chunk and AttentionShape::chunk_len (config_chunks.cc).
/// REQUIRES: all of the attention but these, and RoPE, are read.
void read_dual_chunk(const JsonObject& root, const std::filesystem::path& file,
                     ModelConfig& config);

/// AttentionShape::layers, ModelConfig::stored_layers and ExpertMixture::layers, of a family whose
/// files have a layer for each part (config_layers.cc). most: layers of a file.
void read_stored_layers(const JsonObject& root, std::int64_t most, ModelConfig& config);

/// AttentionShape::sliding_window and state_size, the sizes of recurrent layers, and the layers
/// without RoPE (config_layers.cc).
/// REQUIRES: attention.layers and hidden_size are read.
void read_layers(const JsonObject& root, const Family& family, ModelConfig& config);

/// Heads of layers without a window, shared rows, and inputs for each layer (config_heads.cc).
/// REQUIRES: all of the attention but RoPE, hidden_size, intermediate_size and vocab_size are read.
void read_global_heads(const JsonObject& root, const std::filesystem::path& file,
                       const Family& family, ModelConfig& config);

/// ModelConfig::latent and the scale of scores; attention.head_dim is what RoPE turns until
/// settle_latent has filled in the shape of the rows (config_latent.cc).
/// REQUIRES: the family has latent attention; heads are read.
void read_latent(const JsonObject& root, const Family& family, ModelConfig& config);
/// Scales scores as YaRN's mscale_all_dim says, unless attention is not latent.
/// REQUIRES: rope_scaling is read, from this object.
void scale_latent(const JsonObject& rope, ModelConfig& config);
void settle_latent(const JsonObject& root, const Family& family, ModelConfig& config);

/// ModelConfig::mixture, and the activation that goes with it (config_experts.cc).
/// REQUIRES: attention.layers, hidden_size and intermediate_size are read.
void read_mixture(const JsonObject& root, const Family& family, ModelConfig& config);

/// bos, eos and sampling (config_generation.cc), of config.json and generation_config.json.
/// REQUIRES: vocab_size is read.
void read_generation(const JsonObject& root, const Family& family,
                     const std::filesystem::path& generation_file, ModelConfig& config);

}  // namespace topkv
