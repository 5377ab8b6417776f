// What a draft model takes, before it is loaded.
#pragma once

#include <cstdint>
#include <filesystem>

#include "src/device/device_sizes.h"
#include "topkv/draft_model.h"

namespace topkv {

/// Returns DraftModel::window(). Throws InvalidArgument for a window that is too small.
std::int64_t draft_window(const ModelConfig& config, const DraftModelOptions& options);
/// Returns DraftModel::session_bytes(). Throws as draft_window does.
std::int64_t draft_session_bytes(const ModelConfig& config, const DraftModelOptions& options);

/// The options of a draft model's session, which attends all that it has read. It has room for the
/// window and for a draft behind it.
RetrievalOptions draft_retrieval(std::int64_t window);

/// What a draft model takes, in bytes.
struct DraftBytes {
  std::int64_t weights = 0;
  std::int64_t activations = 0;  ///< of a step
  std::int64_t rows = 0;         ///< of one session, in host memory
  std::int64_t device = 0;       ///< of a CUDA device's memory, all in all; 0 on the host
};

/// Reads the configuration and the headers of the weights. Throws FileError and Unsupported as
/// Model::load does, and as draft_window does.
DraftBytes draft_bytes(const std::filesystem::path& model, const DraftModelOptions& options,
                       const DeviceSizes& device);

}  // namespace topkv
