#include "src/text/tokens/byte_allowance.h"

#include <fmt/format.h>

#include "topkv/error.h"

namespace topkv {

void ByteAllowance::refuse(std::size_t bytes) const {
  if (bytes > longest_text) {
    throw FileError(
        fmt::format("normalizer or pre_tokenizer makes a text of {} bytes; expected at most {}: "
                    "encode it in parts",
                    bytes, longest_text));
  }
  throw FileError(
      fmt::format("normalizer and pre_tokenizer make more than {} bytes of a text of {}; expected "
                  "at most {} for each byte and {} more",
                  per_byte * text_bytes_ + for_any_text, text_bytes_, per_byte, for_any_text));
}

}  // namespace topkv
