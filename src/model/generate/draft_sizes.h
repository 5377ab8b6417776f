// What a draft model takes, before it is loaded.
#pragma once

#include <cstdint>

#include "topkv/draft_model.h"

namespace topkv {

/// Returns DraftModel::window(). Throws InvalidArgument for a window that is too small.
std::int64_t draft_window(const ModelConfig& config, const DraftModelOptions& options);
/// Returns DraftModel::session_bytes(). Throws as draft_window does.
std::int64_t draft_session_bytes(const ModelConfig& config, const DraftModelOptions& options);

}  // namespace topkv
