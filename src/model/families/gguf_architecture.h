// The architectures that GGUF files name, as data: the family of each, and what ggml calls the
// tensors of its layers. An architecture is one entry of the table.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "src/core/format/gguf_file.h"
#include "src/model/families/families.h"

namespace topkv {

/// A part of a layer: Hugging Face's name, as it stands behind "model.layers.N.", and ggml's, as it
/// stands behind "blk.N."; ".weight" and ".bias" follow both.
using GgufName = std::pair<std::string_view, std::string_view>;

struct GgufArchitecture {
  std::string_view name;        ///< general.architecture
  std::string_view model_type;  ///< of Hugging Face
  /// Of files with an expert_count. An architecture of both kinds has two entries.
  bool experts;
  /// Rows of q and k are in the order that turns neighbours (llama.cpp's converter puts them so):
  /// pairs of RoPE are elements (2i, 2i + 1). Scores do not depend on the order.
  bool interleaved;
  std::span<const GgufName> norms;
  /// Numbers and factors of a layer by their whole names, endings included.
  std::span<const GgufName> scales = {};
  /// Layers of the one size of this architecture whose queries are scaled by the square root of
  /// hidden size / heads. Other sizes scale them by that of a head's length. 0: there is none.
  std::int64_t layers_scaled_by_width = 0;
  /// Whether YaRN's bounds are rounded to whole pairs.
  bool yarn_truncates = true;
  std::int64_t window =
      0;  ///< a missing attention.sliding_window, if some layers have one; 0: none
  /// Parts of layers that are called otherwise than gguf_projections says, with their endings:
  /// ours, as it stands behind "model.layers.N.", and ggml's. A layer has the ones of its kind.
  std::span<const GgufName> parts = {};
  /// Of files whose routers score by sigmoids. An architecture of both kinds has two entries.
  bool sigmoid = false;
  /// GatedDeltaNet::tiled: the order in which llama.cpp's converter puts value heads, with the rows
  /// of qkv, z, b and a, and the inputs of the output projection.
  bool tiled_values = false;

  const Family& family() const { return *find_family(model_type); }
};

/// The projections of a layer, of which a family has some (Family::fused_qkv, fused_gate_up).
std::span<const GgufName> gguf_projections();
/// The rows of q, k and v in one tensor, in place of three (llama.cpp's --fuse-qkv, and phi3).
inline constexpr std::string_view gguf_qkv = "attn_qkv";

/// The projections of a layer with latent attention, and of its shared experts, which other
/// families do not have.
std::span<const GgufName> gguf_latent_projections();
/// The projections of all heads from latents: [heads, kv_rank, nope_dim], which is transposed, and
/// [heads, value_dim, kv_rank].
inline constexpr std::string_view gguf_latent_keys = "attn_k_b";
inline constexpr std::string_view gguf_latent_values = "attn_v_b";
/// The bias of sigmoids for the choice of experts.
inline constexpr std::string_view gguf_choice_bias = "exp_probs_b.bias";

/// The projections of a layer's experts, in the order of FamilyMixture::projections: each is one
/// tensor [experts, outputs, inputs].
std::span<const std::string_view> gguf_experts();
/// Gate and up of all experts in one tensor [experts, 2 * outputs, inputs], gate first, in place of
/// the first two of gguf_experts (llama.cpp's --fuse-gate-up-exps).
inline constexpr std::string_view gguf_gate_up_experts = "ffn_gate_up_exps";
/// A projection ("ffn_up") of one expert, as files of before April 2024 have it: "ffn_up.3".
std::string gguf_expert(std::string_view projection, std::int64_t expert);
inline constexpr std::string_view gguf_router = "ffn_gate_inp";
/// The expert that all tokens share, and its gate: names as gguf_projections has them.
std::span<const GgufName> gguf_shared_expert();
/// The tensors of a Gated DeltaNet layer, with their endings. b and a are two tensors, or one if
/// Family::fused_delta; so are qkv and z in old files.
std::span<const GgufName> gguf_delta();
inline constexpr std::string_view gguf_fused_delta = "ssm_in.weight";
inline constexpr std::string_view gguf_sinks = "attn_sinks";

/// Throws FileError, Unsupported naming those that topkv runs.
const GgufArchitecture& architecture_of(const GgufFile& file);

/// The layers of a model, and the blocks behind them that draft tokens (MTP), which topkv leaves
/// out. Blocks are numbered through.
struct GgufBlocks {
  std::int64_t layers = 0;
  std::int64_t drafts = 0;
};
/// Throws FileError for numbers that cannot be.
GgufBlocks blocks_of(const GgufFile& file, const GgufArchitecture& architecture);
/// The number of the block that a tensor belongs to ("blk.3.ffn_up.weight": 3); nothing: none.
std::optional<std::int64_t> block_of(std::string_view tensor);

}  // namespace topkv
