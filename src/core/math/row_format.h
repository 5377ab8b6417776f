// Rows as they are stored: rounding vectors to a row's dtype, and reading them back. What tensors
// hold (f32, f16, bf16) is read by convert.h.
//
// q8 and q4 follow GGML's q8_0 and q4_1. Their keys have scales of channels besides: in networks
// whose keys have a few channels far larger than the others (biases of k_proj; KVQuant, Hooper et
// al. 2024, section 3.1) one scale for 32 elements would leave the others nothing. A channel's
// scale is the power of two next to its root mean square over the median of all channels', at least
// 1: other channels stay as they are, and nothing is lost by the multiplication. What is known to
// be common to all keys, the bias of a network's K projection, is taken off before (key_bias.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "topkv/view.h"

namespace topkv {

/// out[0 .. dim) = the vector at a position, exactly as all who read it see it.
void decode(const KeyView& vectors, std::int64_t position, float* out);

/// Rounds a vector of `dim` finite elements. channels: as in KeyView. bias: [dim], what is taken
/// off before rounding to q8 or q4 (bias_at); null: nothing. Elements beyond what the dtype can
/// hold become infinite, or not a number.
void encode(const float* in, std::int64_t dim, DType dtype, const float* channels, std::byte* out,
            const float* bias = nullptr);

/// The scales of channels that suit the vectors [count, dim], less their bias; out: [dim]. Of fewer
/// than `least_for_channels` all are 1. REQUIRES: finite.
inline constexpr std::int64_t least_for_channels = 256;
void choose_channels(const float* vectors, std::int64_t count, std::int64_t dim, float* out);

/// The view's, or as many ones, which stay until this thread asks again; null for what is not
/// stored in blocks.
const float* channels_of(const KeyView& vectors);

}  // namespace topkv
