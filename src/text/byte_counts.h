// How often each byte stands in something.
#pragma once

#include <array>
#include <cstdint>

namespace topkv {

using ByteCounts = std::array<std::int64_t, 256>;

}  // namespace topkv
