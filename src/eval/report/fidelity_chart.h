// A measurement of fidelity as a picture: the error of a layer's output and the divergence of the
// next token against the bytes read per token, a line for each index with a tail, through its
// points for each top k.
#pragma once

#include <string>
#include <vector>

#include "src/eval/run/fidelity.h"

namespace topkv {

/// Whether a setting has a place in the picture: the bytes that it reads are known, and its
/// distances are numbers.
bool has_place(const Fidelity& setting);

/// A self-contained SVG document, light or dark as the reader prefers. title and subtitle are plain
/// text. Settings without a place are named below the picture. REQUIRES: a setting with one.
std::string fidelity_svg(const std::vector<Fidelity>& settings, const std::string& title,
                         const std::string& subtitle);

}  // namespace topkv
