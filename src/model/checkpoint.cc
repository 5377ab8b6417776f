#include "src/model/checkpoint.h"

#include "src/core/gguf_file.h"
#include "src/model/gguf_checkpoint.h"
#include "src/model/safetensors_checkpoint.h"

namespace topkv {

std::unique_ptr<Checkpoint> Checkpoint::open(const std::filesystem::path& model) {
  return is_model_file(model) ? open_gguf(model) : open_safetensors(model);
}

}  // namespace topkv
