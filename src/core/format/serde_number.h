// Decimal numbers as Rust's serde_json reads them where it is not asked to be exact: the digits as
// an integer, times or divided by a power of ten, which may miss the nearest double by its last
// bit. What compares sums of such numbers as a Rust program does needs the same bits.
#pragma once

#include <string_view>

namespace topkv {

/// nearest: the value of the text, returned where serde_json would refuse it as too large.
/// REQUIRES: text is a number of JSON.
double serde_number(std::string_view text, double nearest);

}  // namespace topkv
