// The weights that a config.json describes, where there are none yet: forms and sizes without
// values, so that a plan can be made before anything is fetched.
#pragma once

#include <filesystem>
#include <memory>

#include "src/model/weights/checkpoint.h"

namespace topkv {

/// Of a model directory. Every tensor that a network asks for is there, in the dtype that
/// config.json names (bf16 where it names none) or quantised as that says; nothing can be read.
/// Throws FileError and Unsupported as Checkpoint::open does of a configuration.
std::unique_ptr<Checkpoint> describe_checkpoint(const std::filesystem::path& directory);

}  // namespace topkv
