#include "src/model/checkpoint.h"

#include "src/model/safetensors_checkpoint.h"

namespace topkv {

std::unique_ptr<Checkpoint> Checkpoint::open(const std::filesystem::path& model) {
  return open_safetensors(model);
}

}  // namespace topkv
