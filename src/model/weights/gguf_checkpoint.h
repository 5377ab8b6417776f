// The weights of a GGUF file, by the names that Hugging Face has for them.
#pragma once

#include <filesystem>
#include <memory>

#include "src/model/weights/checkpoint.h"

namespace topkv {

/// As Checkpoint::open. Plain matrices stay in the mapped file; those in ggml's blocks are packed
/// as gguf_blocks.h says.
std::unique_ptr<Checkpoint> open_gguf(const std::filesystem::path& file);

}  // namespace topkv
