// ggml's blocks, whose bytes are never refused: a byte that says the type, and blocks.
#include "src/model/weights/gguf_blocks.h"

#include <vector>

#include "tests/fuzz/target.h"

namespace fuzz = topkv::fuzz;

FUZZ_TARGET(gguf_blocks)(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const topkv::GgmlType* type = topkv::find_ggml_type(data[0] % 64);
  if (type == nullptr) return 0;
  const topkv::BlockFormat* format = topkv::find_block_format(*type);
  if (format == nullptr) return 0;
  const auto bytes = static_cast<std::size_t>(type->bytes);
  if (1 + bytes > size) return 0;
  fuzz::accepts([&] {
    for (std::size_t at = 1; at + bytes <= size; at += bytes) {
      // On the heap, of their own sizes.
      const auto* first = reinterpret_cast<const std::byte*>(data + at);
      const std::vector<std::byte> block(first, first + bytes);
      std::vector<std::int8_t> codes(static_cast<std::size_t>(type->inputs));
      std::vector<float> scales(static_cast<std::size_t>(type->inputs / format->group));
      std::vector<float> offsets(format->has_offsets ? scales.size() : 0);
      format->read(block.data(), codes.data(), scales.data(),
                   format->has_offsets ? offsets.data() : nullptr);
      if (format->packing == topkv::Packing::int4)
        for (const std::int8_t code : codes)
          fuzz::require(code >= -8 && code <= 7, "a code beyond 4 bits");
    }
  });
  return 0;
}
