// How alike two texts are, as Python's difflib measures it. A pure function.
#pragma once

#include <string_view>

namespace topkv {

/// `difflib.SequenceMatcher(None, a, b).ratio()` of CPython 3.11, over code points: twice the
/// characters in matching blocks (Ratcliff and Obershelp), divided by the characters of both texts;
/// 1 for two empty texts. Its heuristic `autojunk` counts: in a `b` of 200 characters or more, no
/// block begins with a character that makes up more than 1 % of `b`. Bytes that are not UTF-8 count
/// as U+FFFD. The time grows with the product of both lengths, times the number of blocks.
double sequence_ratio(std::string_view a, std::string_view b);

}  // namespace topkv
