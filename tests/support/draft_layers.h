// Checkpoints with a draft layer: those of tests/fixtures/parity, each with the tensors that
// tools/make_draft_layer_fixtures.py made for it.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "tests/support/temp_directory.h"
#include "tests/support/tensor_file.h"

namespace test {

using topkv::FileTensors;

inline std::filesystem::path fixtures(const std::string& folder) {
  return std::filesystem::path(TOPKV_SOURCE_DIR) / "tests/fixtures" / folder;
}

/// Writes the checkpoint of this name. change: of its tensors and the layer's.
inline void write_with_draft_layer(
    const std::filesystem::path& folder, const std::string& name,
    const std::function<void(FileTensors&)>& change = [](FileTensors&) {}) {
  std::filesystem::copy_file(fixtures("parity") / name / "config.json", folder / "config.json");
  FileTensors all = topkv::read_tensors(fixtures("parity") / name / "model.safetensors");
  for (auto& [tensor, value] :
       topkv::read_tensors(fixtures("draft_layers") / name / "model.safetensors"))
    all[tensor] = std::move(value);
  change(all);
  std::ofstream(folder / "model.safetensors", std::ios::binary) << topkv::file_of(all);
}

/// Multiplies a tensor of bf16 by a power of two, or by 0.
inline void scale_bf16(topkv::FileTensor& tensor, int exponent, bool zero = false) {
  for (std::size_t at = 0; at < tensor.bytes.size(); at += 2) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, tensor.bytes.data() + at, 2);
    const int biased = (bits >> 7 & 0xff) + exponent;
    bits = zero || biased <= 0 ? 0 : static_cast<std::uint16_t>((bits & 0x807f) | (biased << 7));
    std::memcpy(tensor.bytes.data() + at, &bits, 2);
  }
}

/// Makes the layer of a Qwen3.5 checkpoint a good one. What layers add to the residual is divided
/// by 2^halvings, or is nothing if that is 0: tokens then follow mostly, or alone, from the last
/// one, and so they do in the draft layer.
inline void make_layer_good(FileTensors& tensors, int halvings) {
  for (auto& [name, tensor] : tensors) {
    for (const char* const end : {"o_proj.weight", "out_proj.weight", "down_proj.weight"})
      if (name.ends_with(end)) scale_bf16(tensor, -halvings, halvings == 0);
  }
  // W = [1 0]; norms are stored less 1.
  topkv::FileTensor& projection = tensors["mtp.fc.weight"];
  const auto hidden = projection.shape[0].get<std::size_t>();
  std::fill(projection.bytes.begin(), projection.bytes.end(), '\0');
  for (std::size_t i = 0; i < hidden; ++i) {
    const std::uint16_t one = 0x3f80;
    std::memcpy(projection.bytes.data() + 2 * (i * 2 * hidden + i), &one, 2);
  }
  scale_bf16(tensors["mtp.pre_fc_norm_embedding.weight"], 0, true);
  tensors["mtp.norm.weight"] = tensors["model.norm.weight"];
}

}  // namespace test
