// cuDNN's attention, where there is one to compare with.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>

#include "gpu/attention/cudnn_attention.h"

namespace bench {

/// Null, and says why, where cuDNN cannot be loaded.
inline std::unique_ptr<topkv::gpu::CudnnAttention> open_cudnn() {
  std::string why;
  if (topkv::gpu::CudnnAttention::available(&why))
    return std::make_unique<topkv::gpu::CudnnAttention>();
  fmt::print("without cuDNN: {}\n", why);
  return nullptr;
}

}  // namespace bench
