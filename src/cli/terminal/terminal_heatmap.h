// The needle grid in characters.
#pragma once

#include <cstddef>
#include <string>

#include "src/eval/report/heatmap.h"

namespace topkv::cli {

/// In lines of `width` characters. colour: with ANSI background colours.
std::string terminal_heatmap(const Grid& grid, bool colour, std::size_t width);

}  // namespace topkv::cli
