// The kernels that code keys and values (index/codes/key_codes.h, index/codes/value_codes.h).
//
// All launchers are asynchronous on `stream`, take device pointers, and throw Error when the launch
// fails. Vectors of a tile: a multiple of 64 but for the last tile of a head.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace topkv::gpu {

inline constexpr int most_coded_axes = 256;

/// out = scale * vector - mean: [count, dim], and the squares of each, summed up: [count].
/// *not_finite becomes 1 when some element is not finite.
void centre(const __nv_bfloat16* vectors, int count, int dim, float scale, const float* mean,
            float* out, float* squares, int* not_finite, cudaStream_t stream);

/// Of an axis: as EvenLevels.
struct KeyLevels {
  float low, step, per_step, most;
};
/// A field of a byte of a code: a slot of the axis; -1: none.
struct KeyField {
  short axis, shift;
};

struct KeyTile {
  const float* along;  ///< [axes, stride]: centred keys along each axis
  std::int64_t stride;
  int count, axes, bytes;   ///< axes: at most most_coded_axes; bytes: of a code
  const KeyLevels* levels;  ///< [axes]
  const KeyField* fields;   ///< [bytes, 4]
  float per_scale;          ///< what a scaled length is multiplied by
  std::uint8_t* codes;      ///< as KeyCoder lays them out, from the tile's first key on
  float* residuals;         ///< [count]: in, the squares of centred keys
};
void encode_keys(const KeyTile& tile, cudaStream_t stream);

struct ValueTile {
  const float* along;          ///< [axes, stride]
  std::int64_t stride, first;  ///< first: number of the tile's first value
  int count, axes, lanes;
  const float2* levels;        ///< [axes]: the lower level, and the distance to the upper one
  const std::uint32_t* seeds;  ///< [axes]: ValueCoder::seed_of_axis
  std::uint8_t* codes;         ///< as ValueCoder lays them out, from the tile's first value on
};
void encode_values(const ValueTile& tile, cudaStream_t stream);

}  // namespace topkv::gpu
