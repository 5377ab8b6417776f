// Which shard has which tensor: model.safetensors.index.json beside two shards.
#include "src/model/weights/safetensors.h"
#include "tests/fuzz/target.h"
#include "tests/support/tensor_file.h"

namespace fuzz = topkv::fuzz;

FUZZ_TARGET(safetensors_index)(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  [[maybe_unused]] static const bool shards = [] {
    folder.write("a.safetensors", topkv::file_of({{"x", {"F32", {1}, "abcd"}}}));
    folder.write("b.safetensors",
                 topkv::file_of({{"y", {"U8", {3}, "abc"}}, {"z", {"U8", {1}, "d"}}}));
    return true;
  }();
  folder.write("model.safetensors.index.json", fuzz::text_of(data, size));
  fuzz::accepts(
      [&] {
        const auto tensors = topkv::SafeTensors::open(folder.path());
        for (const std::string& name : tensors.names())
          fuzz::require(name == "x" || name == "y" || name == "z", "a tensor of no shard", name);
      },
      folder.text());
  return 0;
}
