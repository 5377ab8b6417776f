// A file of tensors: header and bytes.
#include "src/model/weights/safetensors.h"

#include <algorithm>

#include "tests/fuzz/target.h"

namespace fuzz = topkv::fuzz;

FUZZ_TARGET(safetensors)(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  folder.write("model.safetensors", fuzz::text_of(data, size));
  fuzz::accepts(
      [&] {
        const auto file = topkv::SafeTensorsFile::open(folder.path() / "model.safetensors");
        const auto tensors = topkv::SafeTensors::open(folder.path());
        std::size_t bytes = 8;
        for (const std::string& name : tensors.names()) {
          const auto& entry = file.entries().find(name)->second;
          const auto all = tensors.bytes(name);
          bytes += all.size();
          fuzz::require(std::count(all.begin(), all.end(), std::byte{1}) <= std::ssize(all), "");
          if (tensors.is_float(name)) tensors.get(name, entry.shape);
          tensors.raw(name, entry.shape, tensors.dtype(name));
        }
        fuzz::require(bytes <= size, "tensors beyond the file");
        fuzz::require(tensors.unread().empty(), "a tensor that was not given");
        tensors.check_finite();
      },
      folder.text());
  return 0;
}
