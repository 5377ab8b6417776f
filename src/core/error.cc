#include "topkv/error.h"

#include <fmt/format.h>

namespace topkv {

OutOfMemory::OutOfMemory(const std::string& what, std::int64_t wanted_bytes,
                         std::int64_t available_bytes, const std::string& remedy)
    : Error(fmt::format("{}: {:.2f} GiB wanted ({} bytes), {:.2f} GiB available ({} bytes); {}",
                        what, static_cast<double>(wanted_bytes) / (1LL << 30), wanted_bytes,
                        static_cast<double>(available_bytes) / (1LL << 30), available_bytes,
                        remedy)),
      wanted_(wanted_bytes),
      available_(available_bytes) {}

}  // namespace topkv
