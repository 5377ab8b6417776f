// Where two texts begin alike: what was read of one holds for the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "topkv/types.h"

namespace topkv {

/// How many tokens two texts begin with alike.
inline std::size_t common_tokens(std::span<const Token> a, std::span<const Token> b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                                  a.begin());
}

}  // namespace topkv
