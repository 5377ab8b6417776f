// Rounds float weights to packed ones (matrix.h), row by row, each group to the scale that leaves
// the least squared error among those tried. Compiled for every x86 level and chosen at run time
// (Highway).
#pragma once

#include <cstdint>
#include <vector>

#include "src/core/math/matrix.h"

namespace topkv {

/// So that sums of squares stay finite in float32.
inline constexpr float largest_to_quantise = 1e15F;

/// Packs one row of in_features weights, each at most largest_to_quantise in size. codes:
/// row_bytes() zeroed bytes; scales and offsets: of the row's groups. Weights below 1e-30 in size,
/// all of a group, become 0.
///
/// int8: codes -127 to 127, scale = largest / 127, no offsets. int4: with offsets; scales between
/// half of what the group's range needs and all of it are tried, each then set, with the offset, to
/// what least squares give for its codes. REQUIRES: has_offsets for int4, not for int8.
void quantise_row(const Matrix& form, const float* row, const PackedRows& to);

}  // namespace topkv
