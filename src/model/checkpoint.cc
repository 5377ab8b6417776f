#include "src/model/checkpoint.h"

#include <fmt/format.h>

#include "src/core/gguf_file.h"
#include "src/core/printable.h"
#include "src/model/gguf_checkpoint.h"
#include "src/model/safetensors_checkpoint.h"
#include "topkv/error.h"

namespace topkv {
namespace {

[[noreturn]] void refuse(const Checkpoint& checkpoint, const std::string& name) {
  throw Unsupported(fmt::format("{}: experts in one tensor ({}); topkv reads these of safetensors",
                                path_text(checkpoint.source()), name));
}

}  // namespace

MatrixSource Checkpoint::fused_expert(const std::string& name, const FusedExpert& /*which*/,
                                      std::int64_t /*out*/, std::int64_t /*in*/,
                                      WeightFormat /*format*/) const {
  refuse(*this, name);
}

std::int64_t Checkpoint::fused_biases(const std::string& name, std::int64_t /*experts*/,
                                      std::span<float> /*to*/) const {
  refuse(*this, name);
}

std::unique_ptr<Checkpoint> Checkpoint::open(const std::filesystem::path& model) {
  return is_model_file(model) ? open_gguf(model) : open_safetensors(model);
}

}  // namespace topkv
