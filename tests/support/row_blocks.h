// q8 and q4 vectors read back by plain arithmetic, as topkv/types.h describes them: what the
// library's readers are compared with.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "topkv/view.h"

namespace topkv::test {

inline double half_at(const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  const int exponent = bits >> 10 & 31;
  const double mantissa = bits & 1023;
  const double size = exponent == 0 ? std::ldexp(mantissa, -24)
                                    : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

/// The elements of the vector at a position, and the distance of two levels at each.
struct BlockValues {
  std::vector<double> elements, steps;
};
inline BlockValues read_blocks(const KeyView& view, std::int64_t position) {
  BlockValues out;
  for (std::int64_t i = 0; i < view.dim; ++i) {
    const double channel = view.channels == nullptr ? 1 : view.channels[i];
    const std::int64_t in_block = i % 32;
    if (view.dtype == DType::q8) {
      const std::byte* block = view.key(position) + i / 32 * 34;
      const auto code = static_cast<std::int8_t>(std::to_integer<int>(block[2 + in_block]));
      out.elements.push_back(channel * half_at(block) * code);
      out.steps.push_back(channel * half_at(block));
    } else {
      const std::byte* block = view.key(position) + i / 32 * 20;
      const int pair = std::to_integer<int>(block[4 + in_block % 16]);
      const int code = in_block < 16 ? pair & 15 : pair >> 4;
      out.elements.push_back(channel * (half_at(block + 2) + half_at(block) * code));
      out.steps.push_back(channel * half_at(block));
    }
  }
  return out;
}

}  // namespace topkv::test
