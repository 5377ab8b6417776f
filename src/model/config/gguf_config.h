// The configuration of a model in a GGUF file: its metadata, said as the config.json of the same
// model says it, so that one reader checks both (config.cc).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/core/format/gguf_file.h"

namespace topkv {

/// Throws FileError and Unsupported naming the key of the metadata.
nlohmann::json config_of_gguf(const GgufFile& file);

/// What the tensor rope_freqs.weight has RoPE's frequencies divided by, pair by pair (Llama 3.1);
/// empty: there is none. Throws FileError for one that has not a factor for each pair.
std::vector<double> rope_factors_of_gguf(const GgufFile& file, std::int64_t pairs);

/// What to tell of metadata of the architecture that is not read, on one line; empty: nothing.
std::string unread_gguf_warning(const GgufFile& file);

/// What to tell of a Qwen for texts that Qwens read with dual chunk attention, for which GGUF has
/// no keys, on one line; empty: nothing.
std::string gguf_chunks_warning(const GgufFile& file);

/// Tokens that end generation: eos_token_id, eot_token_id and eom_token_id of the metadata.
std::vector<std::int64_t> end_tokens(const GgufFile& file);

}  // namespace topkv
