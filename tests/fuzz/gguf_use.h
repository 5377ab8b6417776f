// What the targets of GGUF files do with one that was opened.
#pragma once

#include <span>
#include <string_view>

#include "src/core/format/gguf_file.h"
#include "tests/fuzz/target.h"

namespace topkv::fuzz {

/// Reads each tensor, as what loads it does, and checks that it lies within its file.
/// size: bytes of all files.
inline void use_tensors(const GgufFile& file, std::size_t size) {
  require(file.tensors().size() * 24 <= size, "more tensors than the files can name");
  for (const auto& [name, tensor] : file.tensors()) {
    const std::span<const std::byte> all = file.bytes(tensor.file);
    const std::byte* const end = all.data() + all.size();
    require(tensor.bytes.data() >= all.data() && tensor.bytes.data() <= end &&
                std::ssize(tensor.bytes) <= end - tensor.bytes.data(),
            "a tensor that does not lie within its file", name);
    unsigned sum = 0;
    for (const std::byte byte : tensor.bytes) sum += static_cast<unsigned>(byte);
    [[maybe_unused]] volatile const unsigned read = sum;
  }
}

}  // namespace topkv::fuzz
