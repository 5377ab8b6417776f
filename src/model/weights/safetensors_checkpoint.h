// The weights of a directory in Hugging Face layout: safetensors, plain or quantised already
// (quantisation.h).
#pragma once

#include <filesystem>
#include <memory>

#include "src/model/weights/checkpoint.h"

namespace topkv {

/// As Checkpoint::open.
std::unique_ptr<Checkpoint> open_safetensors(const std::filesystem::path& directory);

}  // namespace topkv
