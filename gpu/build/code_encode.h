// Kernels that encode keys and values (index/codes/key_codes.h, index/codes/value_codes.h).
//
// All functions are asynchronous on `stream`, take device pointers, and throw Error when the launch
// fails. The number of vectors in a tile is a multiple of 64, except in the last tile of a head.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace topkv::gpu {

inline constexpr int most_coded_axes = 256;

/// Computes out = scale * vector - mean, [count, dim], and the sum of squares of each result,
/// [count]. *not_finite becomes 1 if an element is not finite.
void centre(const __nv_bfloat16* vectors, int count, int dim, float scale, const float* mean,
            float* out, float* squares, int* not_finite, cudaStream_t stream);

/// The levels of an axis, as in EvenLevels.
struct KeyLevels {
  float low, step, per_step, most;
};
/// A field of a byte of a key code: the axis, and its bit shift. An axis of -1 means an unused
/// field.
struct KeyField {
  short axis, shift;
};

/// A tile of keys, and the target of its codes.
struct KeyTile {
  const float* along;  ///< [axes, stride]: projections of the centred keys
  std::int64_t stride;
  int count, axes, bytes;   ///< axes: at most most_coded_axes; bytes: the size of a code
  const KeyLevels* levels;  ///< [axes]
  const KeyField* fields;   ///< [bytes, 4]
  float per_scale;          ///< factor of a scaled length
  std::uint8_t* codes;      ///< in the layout of KeyCoder, from the tile's first key on
  float* residuals;         ///< [count]: holds squares of the centred keys at first
};
/// Writes the codes and the residuals of a tile of keys.
void encode_keys(const KeyTile& tile, cudaStream_t stream);

/// A tile of values, and the target of its codes.
struct ValueTile {
  const float* along;          ///< [axes, stride]: projections of the values
  std::int64_t stride, first;  ///< first: the number of the tile's first value
  int count, axes, lanes;
  const float2* levels;        ///< [axes]: the lower level, and the distance to the upper level
  const std::uint32_t* seeds;  ///< [axes]: ValueCoder::seed_of_axis
  std::uint8_t* codes;         ///< in the layout of ValueCoder, from the tile's first value on
};
/// Writes the codes of a tile of values.
void encode_values(const ValueTile& tile, cudaStream_t stream);

}  // namespace topkv::gpu
