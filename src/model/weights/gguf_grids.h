// The points of ggml's iq1, iq2 and iq3 types, which a block names by number. A point has 8
// elements (iq3: 4); an element is the number of one of its type's values, in 2 bits (iq3: 3), the
// first element lowest.
#pragma once

#include <array>
#include <cstdint>

namespace topkv {

extern const std::array<std::uint16_t, 256> gguf_grid_iq2_xxs;
extern const std::array<std::uint16_t, 512> gguf_grid_iq2_xs;
extern const std::array<std::uint16_t, 1024> gguf_grid_iq2_s;
extern const std::array<std::uint16_t, 256> gguf_grid_iq3_xxs;
extern const std::array<std::uint16_t, 512> gguf_grid_iq3_s;
extern const std::array<std::uint16_t, 2048> gguf_grid_iq1;  ///< iq1_s and iq1_m

}  // namespace topkv
