// What the attention shapes of two sets of rows differ in, for messages.
#pragma once

#include <string>

#include "topkv/types.h"

namespace topkv {

/// Returns whether contexts of two shapes store equal index keys in equal layers. What a step
/// chooses by them, IndexerShape::top and local_blocks, may differ.
bool stores_equal_index_keys(const AttentionShape& a, const AttentionShape& b);

/// Returns what the shape of some rows differs in from the shape that is wanted: "layers 3, not 4;
/// …". Empty: in nothing.
std::string shape_difference(const AttentionShape& rows, const AttentionShape& wanted);

}  // namespace topkv
