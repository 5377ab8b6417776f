#include "src/core/io/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace topkv {

std::uint64_t checksum(const void* data, std::int64_t bytes) {
  return XXH3_64bits(data, static_cast<std::size_t>(bytes));
}

}  // namespace topkv
