// Fills a length: how much text fits in so many tokens.
#pragma once

#include <cstdint>
#include <functional>

namespace topkv {

/// The most units of text, from `least` on and in steps of `step`, that take at most `room` tokens.
/// tokens_of: of so many units; it grows, about linearly, and is asked a few times, for it may
/// encode a million tokens. Throws InvalidArgument when `least` do not fit.
std::int64_t most_units(std::int64_t room, std::int64_t least, std::int64_t step,
                        const std::function<std::int64_t(std::int64_t)>& tokens_of);

}  // namespace topkv
