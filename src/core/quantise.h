// Rounds float weights to packed ones (matrix.h), row by row, each group to the scale that leaves
// the least squared error among those tried. Compiled for every x86 level and chosen at run time
// (Highway).
#pragma once

#include <cstdint>
#include <vector>

#include "src/core/matrix.h"

namespace topkv {

/// Packs one row of in_features finite weights. codes: row_bytes() zeroed bytes; scales and
/// offsets: of the row's groups. Weights below 1e-30 in size, all of a group, become 0.
///
/// int8: codes -127 to 127, scale = largest / 127. int4: scales between half of what the largest
/// needs and all of it are tried, each then set to what least squares give for its codes; without
/// offsets codes are -8 to 7 with a scale of either sign, so that the largest may be -8.
void quantise_row(const Matrix& form, const float* row, const PackedRows& to);

}  // namespace topkv
