// Attention shapes that `topkv bench` times, by name or from a model's config.json.
#pragma once

#include <string>

#include "topkv/types.h"

namespace topkv::cli {

/// "llama3-8b", "qwen2.5-7b-1m", "needle-14m", or the path of a config.json. Throws UsageError for
/// what is neither, FileError or Unsupported for a bad file.
AttentionShape bench_shape(const std::string& text);

/// The first `layers` layers of a shape. Throws UsageError naming --layers when it has fewer.
AttentionShape first_layers(AttentionShape shape, std::int64_t layers);

}  // namespace topkv::cli
