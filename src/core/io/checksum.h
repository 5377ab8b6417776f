// Checksums that tell damaged bytes: XXH3 of 64 bits (Collet, xxHash). Not against who means harm.
#pragma once

#include <cstdint>

namespace topkv {

std::uint64_t checksum(const void* data, std::int64_t bytes);

}  // namespace topkv
