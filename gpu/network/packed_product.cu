// Products with packed weights for few tokens, on tensor cores: W is the left operand, 16 rows of
// it at a time, and the tokens are the 8 columns of the right one. Tensor cores are far from busy;
// what counts is that every code is read once, 16 bytes at a time, and unpacked in about one
// instruction.
//
// A warp has two tiles of 16 rows, its lanes 4 a row: row lane / 4 and the one 8 below it,
// and of every *chunk* of inputs a quarter each, which lie behind each other and are one load. The
// order of the inputs within a chunk is free as long as x has the same: a lane takes its own inputs
// of x. Chunks divide groups, so that one scale a row goes with each. The warps of a block share
// the chunks of the same rows, and their sums are added in a fixed order.
#include <algorithm>

#include "gpu/network/packed_codes.cuh"
#include "gpu/network/packed_product.h"
#include "gpu/runtime/kernel_parts.cuh"
#include "gpu/runtime/mma.cuh"

namespace topkv::gpu {
namespace {

constexpr int tile = 16;        // rows of a tensor core's operand
constexpr int tile_tokens = 8;  // its columns
constexpr int row_tiles = 2;    // of a warp: x is read for two at a time
constexpr int ahead = 2;        // chunks whose loads are on their way
constexpr int most_warps = 8;
constexpr unsigned ones = 0x3f803f80U;

struct Job {
  const std::byte* codes;
  const float* scales;
  const float* offsets;
  std::int64_t row_bytes;
  std::int64_t out_features;
  int in_features;
  int groups;
  int chunks;  // of a row
  int chunks_of_group;
  const std::int32_t* order;  // of the inputs; null: their own
  const __nv_bfloat16* x;
  bool vectors;  // rows of x are aligned to 16 bytes and read in their own order
  int tokens;
  bool accumulate;
  float* out;
};

/// Words of codes that a lane loads at once.
template <int words>
struct Load {
  unsigned at[words];
};

template <int words>
__device__ __forceinline__ Load<words> load_codes(const std::byte* from) {
  Load<words> load;
  if constexpr (words == 4) {
    const uint4 four = __ldcs(reinterpret_cast<const uint4*>(from));
    load.at[0] = four.x, load.at[1] = four.y, load.at[2] = four.z, load.at[3] = four.w;
  } else if constexpr (words == 2) {
    const uint2 two = __ldcs(reinterpret_cast<const uint2*>(from));
    load.at[0] = two.x, load.at[1] = two.y;
  } else {
    load.at[0] = __ldcs(reinterpret_cast<const unsigned*>(from));
  }
  return load;
}

/// `count` inputs of a token, from `input` on in the order of the codes, as pairs; 0 for those
/// behind the last.
template <int count>
__device__ __forceinline__ void load_inputs(const Job& job, int token, int input,
                                            unsigned (&to)[count / 2]) {
  const __nv_bfloat16* const x = job.x + std::int64_t{token} * job.in_features;
  const __nv_bfloat16* const from = x + input;
  const int left = job.in_features - input;
  if (job.vectors && left >= count) {
    if constexpr (count % 8 == 0) {
#pragma unroll
      for (int i = 0; i < count / 8; ++i) {
        const uint4 eight = __ldg(reinterpret_cast<const uint4*>(from) + i);
        to[4 * i] = eight.x, to[4 * i + 1] = eight.y;
        to[4 * i + 2] = eight.z, to[4 * i + 3] = eight.w;
      }
    } else {
      const uint2 four = __ldg(reinterpret_cast<const uint2*>(from));
      to[0] = four.x, to[1] = four.y;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < count / 2; ++i) {
    const auto bits = [&](int at) -> unsigned {
      if (at >= left) return 0U;
      return unsigned{
          __bfloat16_as_ushort(job.order == nullptr ? from[at] : x[job.order[input + at]])};
    };
    to[i] = bits(2 * i) | bits(2 * i + 1) << 16;
  }
}

/// c += 16 rows x 8 tokens of one lane's words and inputs. upper, lower: the lane's two rows.
template <Packing packing, int words>
__device__ __forceinline__ void multiply(const Load<words>& upper, const Load<words>& lower,
                                         const unsigned* x, float (&c)[4]) {
  using C = Codes<packing>;
#pragma unroll
  for (int w = 0; w < words; ++w) {
    const unsigned first[4] = {C::template pair<0>(upper.at[w]), C::template pair<0>(lower.at[w]),
                               C::template pair<1>(upper.at[w]), C::template pair<1>(lower.at[w])};
    mma(c, first, x[w * C::pairs], x[w * C::pairs + 1]);
    if constexpr (C::pairs == 4) {
      const unsigned second[4] = {
          C::template pair<2>(upper.at[w]), C::template pair<2>(lower.at[w]),
          C::template pair<3>(upper.at[w]), C::template pair<3>(lower.at[w])};
      mma(c, second, x[w * C::pairs + 2], x[w * C::pairs + 3]);
    }
  }
}

/// token_tiles: of 8 tokens; words: a lane's load.
template <Packing packing, int words, int token_tiles, bool offsets>
__global__ void __launch_bounds__(most_warps* warp, token_tiles == 1 ? 2 : 1)
    product_kernel(const Job job) {  // so that nothing spills
  using C = Codes<packing>;
  constexpr int lane_inputs = words * C::per_word;
  __shared__ float sums[most_warps][token_tiles * tile_tokens][row_tiles * tile];
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const int part = static_cast<int>(threadIdx.x) / warp;
  const int parts = static_cast<int>(blockDim.x) / warp;
  const int in_row = lane / 4;
  const int in_chunk = lane % 4;
  const std::int64_t first_row = std::int64_t{blockIdx.x} * (row_tiles * tile);

  // Rows behind the last are read as the last, and not written.
  std::int64_t rows[row_tiles][2];
#pragma unroll
  for (int r = 0; r < 2 * row_tiles; ++r)
    rows[r / 2][r % 2] = min(first_row + r * 8 + in_row, job.out_features - 1);

  float totals[row_tiles][token_tiles][4] = {};
  float c[row_tiles][token_tiles][4] = {};
  float x_sums[token_tiles][4] = {};
  const int begin = static_cast<int>(std::int64_t{job.chunks} * part / parts);
  const int end = static_cast<int>(std::int64_t{job.chunks} * (part + 1) / parts);
  int group = begin / job.chunks_of_group;
  int left_in_group = job.chunks_of_group - begin % job.chunks_of_group;

  for (int chunk = begin; chunk < end; chunk += ahead) {
    Load<words> codes[ahead][row_tiles][2];
#pragma unroll
    for (int a = 0; a < ahead; ++a) {
      const int at = ((chunk + a) * 4 + in_chunk) * (words * 4);
      const bool there = chunk + a < end && at < job.row_bytes;
#pragma unroll
      for (int r = 0; r < 2 * row_tiles; ++r) {
        if (there) {
          codes[a][r / 2][r % 2] =
              load_codes<words>(job.codes + rows[r / 2][r % 2] * job.row_bytes + at);
        } else {
          codes[a][r / 2][r % 2] = {};
        }
      }
    }
#pragma unroll
    for (int a = 0; a < ahead; ++a) {
      if (chunk + a >= end) break;
      const int input = ((chunk + a) * 4 + in_chunk) * lane_inputs;
      const bool whole_group = --left_in_group == 0 || chunk + a + 1 == end;
      float scale[row_tiles][2];
      float offset[row_tiles][2];
      if (whole_group) {
#pragma unroll
        for (int r = 0; r < 2 * row_tiles; ++r) {
          const std::int64_t at = rows[r / 2][r % 2] * job.groups + group;
          scale[r / 2][r % 2] = __ldg(job.scales + at);
          if constexpr (offsets) offset[r / 2][r % 2] = __ldg(job.offsets + at);
        }
      }
#pragma unroll
      for (int n = 0; n < token_tiles; ++n) {
        const int token = n * tile_tokens + in_row;
        unsigned x[lane_inputs / 2] = {};
        if (token < job.tokens) {
          load_inputs<lane_inputs>(job, token, input, x);
        }
#pragma unroll
        for (int r = 0; r < row_tiles; ++r)
          multiply<packing>(codes[a][r][0], codes[a][r][1], x, c[r][n]);
        if constexpr (offsets) {
          const unsigned all_ones[4] = {ones, ones, ones, ones};
#pragma unroll
          for (int i = 0; i < lane_inputs / 2; i += 2) mma(x_sums[n], all_ones, x[i], x[i + 1]);
        }
      }
      if (!whole_group) continue;
#pragma unroll
      for (int n = 0; n < token_tiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int r = 0; r < row_tiles; ++r) {
            float& total = totals[r][n][i];
            total = fmaf(scale[r][i / 2], c[r][n][i], total);
            if constexpr (offsets) total = fmaf(offset[r][i / 2], x_sums[n][i], total);
            c[r][n][i] = 0;
          }
          x_sums[n][i] = 0;
        }
      }
      ++group;
      left_in_group = job.chunks_of_group;
    }
  }

#pragma unroll
  for (int n = 0; n < token_tiles; ++n) {
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[part][n * tile_tokens + 2 * in_chunk + i % 2][r * tile + i / 2 * 8 + in_row] =
            totals[r][n][i];
    }
  }
  __syncthreads();
  constexpr int block_rows = row_tiles * tile;
  for (int i = static_cast<int>(threadIdx.x); i < job.tokens * block_rows;
       i += static_cast<int>(blockDim.x)) {
    const int token = i / block_rows;
    const std::int64_t row = first_row + i % block_rows;
    if (row >= job.out_features) continue;
    float* to = job.out + token * job.out_features + row;
    float sum = job.accumulate ? *to : 0.0F;
    for (int p = 0; p < parts; ++p) sum += sums[p][token][i % block_rows];
    *to = sum;
  }
}

template <Packing packing, int words, int token_tiles>
void launch(const Job& job, cudaStream_t stream) {
  const std::int64_t blocks = (job.out_features - 1) / (row_tiles * tile) + 1;
  // More warps share the rows where rows alone are too few to fill a device.
  constexpr std::int64_t enough_blocks = 512;
  const int warps = std::min(blocks < enough_blocks ? most_warps : most_warps / 2, job.chunks);
  const auto grid = static_cast<unsigned>(blocks);
  const auto threads = static_cast<unsigned>(warps * warp);
  constexpr bool may_have_offsets = packing != Packing::fp8;
  if (job.offsets != nullptr && may_have_offsets) {
    product_kernel<packing, words, token_tiles, may_have_offsets>
        <<<grid, threads, 0, stream>>>(job);
  } else {
    product_kernel<packing, words, token_tiles, false><<<grid, threads, 0, stream>>>(job);
  }
  check_launch("the packed product kernel");
}

template <Packing packing, int words>
void launch_tokens(Job& job, cudaStream_t stream) {
  constexpr int inputs = 4 * words * Codes<packing>::per_word;  // of a chunk
  job.chunks = (job.in_features - 1) / inputs + 1;
  job.chunks_of_group = job.groups == 1 ? job.chunks : job.in_features / job.groups / inputs;
  if (job.tokens <= tile_tokens) {
    launch<packing, words, 1>(job, stream);
  } else {
    launch<packing, words, 2>(job, stream);
  }
}

/// Takes the widest loads whose chunks divide a group.
template <Packing packing>
void launch_packing(Job& job, std::int64_t group, cudaStream_t stream) {
  constexpr int word = 4 * Codes<packing>::per_word;
  if (job.groups == 1 || group % (4 * word) == 0) {
    launch_tokens<packing, 4>(job, stream);
  } else if (group % (2 * word) == 0) {
    launch_tokens<packing, 2>(job, stream);
  } else {
    launch_tokens<packing, 1>(job, stream);
  }
}

}  // namespace

void packed_product(const Matrix& weight, const __nv_bfloat16* x, std::int64_t tokens,
                    bool accumulate, float* out, cudaStream_t stream) {
  if (tokens == 0 || weight.out_features == 0) return;
  Job job{};
  job.codes = weight.data;
  job.scales = weight.scales();
  job.offsets = weight.offsets();
  job.row_bytes = weight.row_bytes();
  job.out_features = weight.out_features;
  job.in_features = static_cast<int>(weight.in_features);
  job.groups = static_cast<int>(weight.groups());
  job.x = x;
  job.order = weight.order();
  job.vectors = !weight.has_order && weight.in_features % 8 == 0 && aligned({x}, 16);
  job.tokens = static_cast<int>(tokens);
  job.accumulate = accumulate;
  job.out = out;
  if (weight.packing == Packing::int8) {
    launch_packing<Packing::int8>(job, weight.group, stream);
  } else if (weight.packing == Packing::fp8) {
    launch_packing<Packing::fp8>(job, weight.group, stream);
  } else {
    launch_packing<Packing::int4>(job, weight.group, stream);
  }
}

}  // namespace topkv::gpu
