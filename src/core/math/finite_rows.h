// Whether stored vectors are finite, told by their bits without decoding them.
#pragma once

#include <cstdint>

#include "topkv/view.h"

namespace topkv {

/// The first vector, one behind the other, of which an element or a block's scale is infinite or
/// not a number; -1: none. Scales of channels are not looked at.
std::int64_t first_not_finite_row(const KeyView& vectors);

}  // namespace topkv
