// The bias of keys: what all keys of a KV head have in common, as RoPE turns it (KeyView::bias).
//
// Networks such as Qwen2.5 add biases to their keys that are a hundred times as large as the rest
// of a key. Rounded to 8 or 4 bits with them, little of the rest is left
// (docs/explanation/row-dtypes.md). Rows in q8 and q4 are therefore rounded without the bias, and
// whoever reads a row adds it again. RoPE turns the bias with the position: a mean over some keys
// would not do.
//
// The sine and the cosine are made of IEEE's operations in float64 and float32, none of them fused,
// so that every processor and a CUDA device (gpu/attention/key_bias.cuh) come to the same bits.
#pragma once

#include <cstdint>

#include "topkv/view.h"

namespace topkv {

/// out[0 .. dim) = the bias of the key at a position of the view. REQUIRES: keys.bias.
void turned_bias(const KeyView& keys, std::int64_t position, float* out);

/// The bias of the key at a position, [dim], in memory of the calling thread that stays until the
/// thread asks for this slot again; null: the keys have none. REQUIRES: 0 <= slot < 4.
const float* bias_at(const KeyView& keys, std::int64_t position, int slot = 0);

/// The number of the first value that cannot be one, in `heads` biases [3, dim]; -1: none. Those
/// within bounds keep every sum within float32.
std::int64_t first_bad_bias(const float* bias, std::int64_t heads, std::int64_t dim);
inline constexpr const char* bias_bounds =
    "factors below 2^96 and frequencies below 2^16, all of them finite";

}  // namespace topkv
