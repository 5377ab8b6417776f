#include "topkv/error.h"

#include <fmt/format.h>

#include "src/core/text/byte_text.h"

namespace topkv {

OutOfMemory::OutOfMemory(const std::string& what, std::int64_t wanted_bytes,
                         std::int64_t available_bytes, const std::string& remedy)
    : Error(fmt::format("{}: {} wanted, {} available; {}", what, exact_byte_text(wanted_bytes),
                        exact_byte_text(available_bytes), remedy)),
      wanted_(wanted_bytes),
      available_(available_bytes) {}

}  // namespace topkv
