#include "src/model/weights/checkpoint.h"

#include <fmt/format.h>

#include "src/core/format/gguf_file.h"
#include "src/core/text/printable.h"
#include "src/model/weights/described_checkpoint.h"
#include "src/model/weights/gguf_checkpoint.h"
#include "src/model/weights/safetensors_checkpoint.h"
#include "topkv/error.h"

namespace topkv {
namespace {

[[noreturn]] void refuse(const Checkpoint& checkpoint, const std::string& name) {
  throw Unsupported(fmt::format(
      "{}: has experts in one tensor ({}); topkv reads such tensors from safetensors only",
      path_text(checkpoint.source()), name));
}

}  // namespace

MatrixSource Checkpoint::fused_expert(const std::string& name, const FusedExpert& /*which*/,
                                      std::int64_t /*out*/, std::int64_t /*in*/,
                                      WeightFormat /*format*/) const {
  refuse(*this, name);
}

MatrixSource Checkpoint::stacked_expert(const std::string& name, const StackedExpert& /*which*/,
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

std::unique_ptr<Checkpoint> Checkpoint::open_or_describe(const std::filesystem::path& model) {
  return Model::has_weights(model) ? open(model) : describe_checkpoint(model);
}

std::string unread_warning(const Checkpoint& checkpoint) {
  std::vector<std::string> names = checkpoint.unread();
  if (names.empty()) return {};
  for (std::string& name : names) name = printable_beginning(name);
  const bool one = names.size() == 1;
  return fmt::format(
      "{}: {} not used: {}; if the network has a use for {}, config.json does not describe these "
      "weights",
      path_text(checkpoint.source()),
      one ? "a tensor is" : fmt::format("{} tensors are", names.size()), listed(names, 3),
      one ? "it" : "them");
}

}  // namespace topkv
