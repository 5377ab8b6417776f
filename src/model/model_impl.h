// What a loaded model holds.
#pragma once

#include <filesystem>
#include <optional>
#include <span>

#include "src/device/compute_device.h"
#include "src/model/forward.h"
#include "src/model/safetensors.h"
#include "src/model/weights.h"
#include "topkv/model.h"

namespace topkv {

struct Model::Impl {
  explicit Impl(const std::filesystem::path& directory);

  /// Throws InvalidArgument naming the first token outside the vocabulary.
  void check_tokens(std::span<const Token> tokens) const;

  std::filesystem::path directory;
  ModelConfig config;
  std::optional<Tokenizer> tokenizer;  // none: the directory has no tokenizer.json
  SafeTensors tensors;
  Weights weights;  // views into tensors
  const ComputeDevice& device = host_device();
};

}  // namespace topkv
